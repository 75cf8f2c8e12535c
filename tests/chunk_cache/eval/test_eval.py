"""Metrics follow their formulas, and the command line shows them."""

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ragboost.chunk_cache.core.loading import load
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.arms import FULL, REUSE, measure_case
from ragboost.chunk_cache.eval.cases import read_cases
from ragboost.chunk_cache.eval.command import answer_score
from ragboost.chunk_cache.eval.full_answer import estimate, kl_divergence
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.cli import app
from ragboost.cli.options import check_paths
from ragboost.errors import ChunkCacheError, ConfigError, RequestError
from ragboost.util.text_scores import word_f1
from tests.chunk_cache.families import build_adapter, build_model, make_prompt


def test_metrics_follow_their_formulas() -> None:
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


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    for text, reason in [
        ("{", r"cases.jsonl:2: not JSON"),
        ("[1]", r"cases.jsonl:2: must be an object, got array"),
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
    command += ["--data", str(tmp_path / "cases.jsonl"), "--policy", "cachecraft"]
    command += ["--ratio", "0.2", "--json"]

    done = CliRunner().invoke(app, command, catch_exceptions=False)

    rows = json.loads(done.stdout)["rows"]
    assert [row["policy"] for row in rows] == ["full", "reuse", "cachecraft"]
    assert rows[0]["kl"] == 0.0 < rows[1]["kl"]
    assert (rows[0]["same_answer"], rows[0]["num_prompts"]) == (1.0, 2)
    assert all(0.0 <= row["score"] <= 1.0 and row["cost"] > 0 for row in rows)

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
    full, plain = measure_case(reuse, first, [FULL, REUSE], max_tokens=4)
    named, *_ = measure_case(reuse, second, [FULL], max_tokens=4)
    assert answer_score(first, full, tokenizer) == 1.0, "without answers full attention is right"
    assert 0.0 <= answer_score(first, plain, tokenizer) <= 1.0
    assert 0.0 <= answer_score(second, named, tokenizer) <= 1.0
