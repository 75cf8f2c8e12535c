"""`ragboost simulate`: what a trace would save."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ragboost.batch import run_batch
from ragboost.batch.display import forecast_sentence
from ragboost.batch.forecast import forecast
from ragboost.config import Settings, TokenSettings

TEXTS = {name: f"{name} " * 100 for name in "abcdef"}


def write(path: Path, orders: Sequence[str]) -> Path:
    lines = [
        {"id": str(i), "question": "?", "documents": [{"id": n, "text": TEXTS[n]} for n in names]}
        for i, names in enumerate(orders)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def word_tokenizer(folder: Path) -> Path:
    """Save a tokenizer that splits at white space."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra tokens")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"unk": 0}, unk_token="unk"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder


def simulate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ragboost", "simulate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_reordered_pair_saves_one_prompt_of_two(tmp_path: Path) -> None:
    found = forecast(write(tmp_path / "trace.jsonl", ["abc", "cba"]))

    assert (found.requests, found.documents) == (2, 6)
    unbounded = found.points[-1]
    assert unbounded.cache_tokens is None
    assert (unbounded.plain, unbounded.online, unbounded.planned) == (0.0, 0.5, 0.5)


def test_a_plan_needs_no_large_cache_and_one_at_a_time_does(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", ["abc", "def"] * 5)

    found = forecast(trace)

    smallest, largest = found.points[0], found.points[-1]
    assert smallest.plain == smallest.online == 0.0
    assert smallest.planned == largest.planned == pytest.approx(0.8)
    assert largest.plain == largest.online == pytest.approx(0.8)


def test_sizes_can_be_chosen_and_never_fall_below_a_request(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", ["abc", "ade"])

    chosen = forecast(trace, cache_tokens=[10, 1000])
    default = forecast(trace)

    assert [point.cache_tokens for point in chosen.points] == [10, 1000]
    sizes = [point.cache_tokens or 0 for point in default.points[:-1]]
    assert sizes == sorted(set(sizes))
    assert sizes[0] == default.document_tokens // 2


def test_a_size_that_rounds_to_another_is_replayed_once(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    documents = [{"id": "1", "text": "a b c d"}, {"id": "2", "text": "e f g"}]
    trace.write_text(f"{json.dumps({'question': 'Who?', 'documents': documents})}\n" * 2)

    sizes = [point.cache_tokens for point in forecast(trace).points]

    assert len(sizes) == len(set(sizes))


def test_a_forecast_counts_documents_with_the_tokenizer_of_the_settings(tmp_path: Path) -> None:
    settings = Settings(tokens=TokenSettings(tokenizer=word_tokenizer(tmp_path)))
    trace = write(tmp_path / "trace.jsonl", ["abc", "cba"])

    counted = forecast(trace, settings=settings)
    estimated = forecast(trace)

    assert (counted.document_tokens, estimated.document_tokens) == (600, 300)
    assert "600 document tokens (counted)" in forecast_sentence(counted)
    assert "300 document tokens (estimated)" in forecast_sentence(estimated)


def test_a_batch_counts_documents_with_the_tokenizer_of_the_settings(tmp_path: Path) -> None:
    settings = Settings(tokens=TokenSettings(tokenizer=word_tokenizer(tmp_path)))
    source = write(tmp_path / "in.jsonl", ["abc", "cba"])

    summary = run_batch(source, tmp_path / "out.jsonl", settings=settings)

    assert summary.before.prompt_tokens == 600
    assert summary.after.cached_tokens == 300


def test_without_ordering_nothing_changes(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", ["abc", "cba", "bca"])

    found = forecast(trace, settings=Settings(ordering={"enabled": False}))  # type: ignore[arg-type]

    assert all(point.plain == point.online == point.planned for point in found.points)


def test_the_command_prints_bars_and_json(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", ["abc", "cba", "bca"])
    with trace.open("a", encoding="utf-8") as file:
        file.write("not JSON\n")

    shown = simulate(trace)
    as_json = simulate(trace, "--json", "--cache-tokens", 100)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Token counts are estimated: name the model's tokenizer")
    assert "planned as a batch" in shown.stdout
    assert "█" in shown.stdout
    assert "1 malformed lines skipped" in shown.stdout
    (point,) = json.loads(as_json.stdout)["points"]
    assert point["cache_tokens"] == 100


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{folder}/none.jsonl"], "cannot read"),
        (["{folder}/empty.jsonl"], "no request with documents\n"),
        (["{folder}/bad.jsonl"], "no request with documents; 2 malformed, line 2: not JSON"),
        (["{folder}/trace.jsonl", "--cache-tokens", "0"], "--cache-tokens"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    write(tmp_path / "trace.jsonl", ["ab"])
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text("\n{\n7\n", encoding="utf-8")

    done = simulate(*(argument.format(folder=tmp_path) for argument in arguments))

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
