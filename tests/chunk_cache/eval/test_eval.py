"""Metrics follow their formulas, and the command line shows them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ragboost.chunk_cache.core.loading import load
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval import report
from ragboost.chunk_cache.eval.cases import read_cases
from ragboost.chunk_cache.eval.metrics import estimate, kl_divergence, normalised
from ragboost.chunk_cache.eval.runner import evaluate, greedy
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.cli import app
from ragboost.cli.options import check_paths
from ragboost.errors import ChunkCacheError, ConfigError, RequestError
from ragboost.text_scores import word_f1
from research.tasks import TaskPrompt
from tests.chunk_cache.families import build_adapter, build_model, flat, make_prompt


def test_metrics_follow_their_formulas() -> None:
    assert normalised(0.781, full=0.852, reuse=0.712) == pytest.approx(0.4929, abs=1e-3)
    assert math.isnan(normalised(0.5, full=0.7, reuse=0.7))
    assert word_f1("The lease, signed by Ada.", ["Ada signed"]) == pytest.approx(2 * 2 / (4 + 2))
    assert word_f1("nobody", []) == 0.0
    assert word_f1("", [""]) == 1.0
    mean, error = estimate([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert math.isnan(estimate([1.0]).error)
    logits = torch.tensor([1.0, 2.0, 3.0])
    assert kl_divergence(logits, logits) == 0.0
    want = torch.nn.functional.kl_div(
        (-logits).log_softmax(-1), logits.softmax(-1), reduction="sum"
    )
    assert kl_divergence(-logits, logits) == pytest.approx(float(want), rel=1e-5)


def test_greedy_decoding_equals_generate() -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    system, chunks, question = make_prompt()
    ids = torch.tensor([[*system, *flat(chunks), *question]])
    want = reuse.adapter.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
    )[0, ids.shape[1] :].tolist()
    got = greedy(reuse, reuse.prefill(system, chunks, question), max_new_tokens=8)
    assert got == [token for token in want if token != 2]


def test_evaluation_has_both_ends_and_every_policy_and_a_plot_shows_them(tmp_path: Path) -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(3):
        system, chunks, question = make_prompt(seed=int(rng.integers(1000)))
        chunk_tuples = tuple(map(tuple, chunks))
        prompt = TaskPrompt(tuple(system), chunk_tuples, tuple(question), 5, "<toy>", (30,))
        cases.append(prompt.case())

    rows = evaluate(reuse, cases, policies=["epic", "oracle"], ratios=[0.1, 0.5])

    assert [(row.policy, row.ratio) for row in rows] == [
        ("full", 1.0),
        ("reuse", 0.0),
        ("epic", 0.1),
        ("epic", 0.5),
        ("oracle", 0.1),
        ("oracle", 0.5),
    ]
    assert rows[0].kl == 0.0 < rows[1].kl
    assert rows[1].recomputed < rows[2].recomputed < rows[3].recomputed < rows[0].recomputed
    assert all(row.num_cases == 3 and row.ttft_s > 0 for row in rows)
    lines = report.curves(rows, task="<toy>")
    assert {name: [ratio for ratio, _ in points] for name, points in lines.items()} == {
        "epic": [0.0, 0.1, 0.5, 1.0],
        "oracle": [0.0, 0.1, 0.5, 1.0],
    }
    report.plot(rows, tmp_path / "plot.svg", task="<toy>")
    assert "toy" in (tmp_path / "plot.svg").read_text("utf-8")
    assert "policy" in report.table(rows).splitlines()[0]
    json.dumps(report.as_json(rows), allow_nan=False)


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    for text, reason in [
        ("{", r"cases.jsonl:2: not JSON"),
        ("[1]", r"cases.jsonl:2: must be an object, got list"),
        ('{"question": "q"}', r"cases.jsonl:2: needs a question and documents"),
        ('{"question": "q", "documents": ["d"]}', r"cases.jsonl:2: has texts, but the model"),
    ]:
        path.write_text(f"\n{text}\n", encoding="utf-8")
        with pytest.raises(RequestError, match=reason):
            read_cases(path, tokenizer=None)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(RequestError, match="has no cases"):
        read_cases(path, tokenizer=None)


def test_the_command_evaluates_a_model_on_a_file_of_token_ids(tmp_path: Path) -> None:
    model = build_model("qwen2-bias")
    model.save_pretrained(tmp_path / "model")
    lines = []
    for seed in range(2):
        system, chunks, question = make_prompt(seed=seed)
        row = {"system": system, "documents": chunks, "question": question, "answer": seed}
        lines.append(json.dumps(row))
    (tmp_path / "cases.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = ["eval-reuse", "--model", str(tmp_path / "model")]
    command += ["--data", str(tmp_path / "cases.jsonl"), "--policy", "hybrid-offline"]
    command += ["--ratio", "0.2", "--plot", str(tmp_path / "plot.svg"), "--json"]

    done = CliRunner().invoke(app, command, catch_exceptions=False)

    rows = json.loads(done.stdout)["rows"]
    assert [row["policy"] for row in rows] == ["full", "reuse", "hybrid-offline"]
    assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")

    command[command.index("0.2")] = "1.0"
    with pytest.raises(ChunkCacheError, match=r"--ratio must be between 0 and 1, got 1.0"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_what_is_no_model_or_no_device_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a model directory"):
        check_paths(model=tmp_path)
    for device, sentence in (("cuda", "torch finds no GPU here"), ("gpu", "must be cpu or cuda")):
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(ConfigError, match=sentence):
            load(tmp_path, device=device)


def test_text_cases_are_tokenised_in_parts_and_answered_in_words(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = [
        "<unk>",
        "<s>",
        "</s>",
        *["Question", ":", "Answer", "ada", "signed", "the", "lease", "who", "."],
    ]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    rows = [
        {"query": "who", "documents": ["ada signed", {"title": "lease", "text": "the ."}]},
        {"question": "who", "documents": ["ada"], "answers": ["ada"], "task": "named"},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    first, second = read_cases(path, tokenizer=tokenizer)
    chunks = [tokenizer.decode(list(chunk)) for chunk in first.chunks]
    assert chunks == ["ada signed", "lease the ."]
    assert tokenizer.decode(list(first.question)) == "Question : who Answer :"
    assert (second.task, second.answers) == ("named", ("ada",))

    reuse = ChunkReuse(build_adapter(), TieredStore())
    found = evaluate(
        reuse, [first, second], policies=[], ratios=[], tokenizer=tokenizer, max_new_tokens=4
    )

    scores = {(row.task, row.policy): row.score for row in found}
    assert scores["data", "full"] == 1.0, "without answers full attention is right"
    assert 0.0 <= scores["named", "full"] <= 1.0
