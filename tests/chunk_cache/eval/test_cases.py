"""Odd prompts in a user's file are refused with their line, before anything is computed."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ragboost.chunk_cache.eval.cases import read_cases
from ragboost.cli import app
from ragboost.engine.builtin import build_tokenizer
from ragboost.errors import ChunkCacheError, RagBoostError, RequestError
from tests.chunk_cache.families import build_model

IDS = {"question": [3, 4], "documents": [[5] * 20, [6] * 20]}
TEXTS = {"question": "Who signed?", "documents": ["Ada signed the lease."]}


def _file(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**IDS, "question": 5}, "question must be a text or a list of token ids, got 5"),
        ({**IDS, "question": True}, "question must be a text or a list of token ids, got true"),
        ({**IDS, "question": ["a"]}, r'question must be a text or a list of .*, got \["a"\]'),
        ({**IDS, "question": [1.5]}, "question must be a text or a list of token ids"),
        ({**IDS, "question": [-1]}, "question must be a text or a list of token ids"),
        ({**IDS, "documents": ["text"]}, r"documents\[0\] must be a list of token ids"),
        ({**IDS, "documents": [[1], 4]}, r"documents\[1\] must be a list of token ids, got 4"),
        ({**IDS, "documents": [[]]}, r"documents\[0\] must be a list of token ids, got \[\]"),
        ({**IDS, "system": "text"}, "system must be a list of token ids"),
        ({**IDS, "answer": "x"}, 'answer must be a token id, got "x"'),
        ({**TEXTS, "system": 5}, "system must be a text, got 5"),
        ({**TEXTS, "answers": {"a": 1}}, "answers must be a text or a list of texts"),
    ],
)
def test_a_field_of_another_type_is_named_with_its_line(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    path = _file(tmp_path, IDS, row)
    with pytest.raises(RequestError, match=rf"cases\.jsonl:2: {reason}"):
        read_cases(path, tokenizer=build_tokenizer())


def test_texts_that_no_tokenizer_accepts_and_answers_that_are_numbers_are_read(
    tmp_path: Path,
) -> None:
    path = _file(tmp_path, {**TEXTS, "question": "\ud800?", "answers": 1987})
    (case,) = read_cases(path, tokenizer=build_tokenizer())
    assert case.question
    assert case.answers == ("1987",)


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ x"])
def test_a_chat_template_that_fails_is_one_sentence(tmp_path: Path, template: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(RequestError, match="the model's chat template failed"):
        read_cases(_file(tmp_path, TEXTS), tokenizer=tokenizer)


def _evaluate(tmp_path: Path, command: str, *rows: Any) -> None:
    build_model("llama").save_pretrained(tmp_path / "model")
    words = [command, "--model", str(tmp_path / "model"), "--data", str(_file(tmp_path, *rows))]
    words += ["--out", str(tmp_path / "out.json")] if command == "calibrate" else []
    CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("command", ["eval-reuse", "calibrate"])
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**IDS, "documents": [[9999] * 20]}, "token 9999, .* 96"),
        ({**IDS, "documents": [[5] * 600]}, "6.. tokens.* 512"),
    ],
)
def test_a_prompt_that_the_model_cannot_take_is_named_before_anything_is_computed(
    tmp_path: Path, command: str, row: dict[str, Any], reason: str
) -> None:
    rows = [{**IDS, "question": [number]} for number in range(4)]
    with pytest.raises(RagBoostError, match=rf"cases\.jsonl:2: .*{reason}"):
        _evaluate(tmp_path, command, rows[0], row, *rows[1:])


def test_a_prompt_counts_once_however_often_the_file_has_it(tmp_path: Path) -> None:
    rows = [{**IDS, "question": [number]} for number in range(3)]
    with pytest.raises(ChunkCacheError, match="3 different prompts; at least 4 are needed"):
        _evaluate(tmp_path, "calibrate", *rows, *rows)


@pytest.mark.parametrize("out", ["model", "file/out.json"])
def test_a_result_that_cannot_be_written_is_said_before_anything_is_computed(
    tmp_path: Path, out: str
) -> None:
    build_model("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "file").write_text("")
    data = _file(tmp_path, *({**IDS, "question": [number]} for number in range(4)))
    words = ["calibrate", "--model", str(tmp_path / "model"), "--data", str(data)]
    with pytest.raises(RagBoostError, match=f"cannot write {tmp_path / out}"):
        CliRunner().invoke(app, [*words, "--out", str(tmp_path / out)], catch_exceptions=False)
    assert not list(tmp_path.glob("*.parts.jsonl"))
