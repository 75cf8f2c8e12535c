"""Read evaluation prompts from a JSONL file of texts or token ids."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from ragboost.errors import RequestError
from ragboost.jsonl import read_objects
from ragboost.types import as_documents

SYSTEM = "Answer the question from the documents, in as few words as possible."
_DOCUMENTS = "{ragboost: the documents}"  # their place, while a chat template writes the rest


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt in token ids with its correct answer."""

    system: tuple[int, ...]  # token ids
    chunks: tuple[tuple[int, ...], ...]  # token ids of each document
    question: tuple[int, ...]
    task: str = "data"  # the group that results are averaged over
    answer: int | None = None  # id of the correct next token; None: use `answers`
    answers: tuple[str, ...] = ()  # correct texts; empty: use full attention's answer


def read_cases(path: Path, *, tokenizer: Any | None, limit: int | None = None) -> list[Case]:
    """Read cases from a JSONL file of `question` (or `query`), `documents`, and optionally
    `system`, `answers` (or `answer`) and `task`; as texts, or token ids with the next one as
    `answer`. Raises `RequestError`, which names the line."""
    lines = islice(read_objects(path), limit)
    cases = [_case(row, where, tokenizer) for where, row in lines]
    if not cases:
        raise RequestError(f"{path} has no cases")
    return cases


def _case(row: dict[str, Any], where: str, tokenizer: Any | None) -> Case:
    question, documents = row.get("question", row.get("query")), row.get("documents")
    if not question or not isinstance(documents, list) or not documents:
        raise RequestError(f"{where}: needs a question and documents")
    task = str(row.get("task", "data"))
    if not isinstance(question, str):
        return Case(
            tuple(row.get("system") or ()),
            tuple(tuple(document) for document in documents),
            tuple(question),
            task=task,
            answer=row.get("answer"),
        )
    if tokenizer is None:
        raise RequestError(f"{where}: has texts, but the model has no tokenizer")
    correct = row.get("answers", row.get("answer")) or ()
    answers = (correct,) if isinstance(correct, str) else tuple(str(answer) for answer in correct)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    chunks = []
    for document in as_documents(documents, where=f"{where}: documents"):
        title = f"{document.title}\n" if document.title else ""
        chunks.append(ids(f"{title}{document.text}\n\n"))
    before, after = _frame(tokenizer, row.get("system") or SYSTEM, question)
    return Case(before, tuple(chunks), ids(after), task=task, answers=answers)


def _frame(tokenizer: Any, system: str, question: str) -> tuple[tuple[int, ...], str]:
    """Return the tokens before the documents and the text behind them, by any chat template."""
    if getattr(tokenizer, "chat_template", None):
        user = {"role": "user", "content": f"{_DOCUMENTS}{question}"}
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "system", "content": system}, user],
                tokenize=False,
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise RequestError(f"the model's chat template failed: {error}") from None
        before, found, after = text.partition(_DOCUMENTS)
        if found:
            return tuple(tokenizer.encode(before, add_special_tokens=False)), after
    return tuple(tokenizer.encode(f"{system}\n\n")), f"Question: {question}\nAnswer:"
