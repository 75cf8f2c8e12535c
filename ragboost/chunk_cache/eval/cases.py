"""Read evaluation prompts from a JSONL file of texts or token ids."""

from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ragboost.chunk_cache.core.loading import TEMPLATE_ERRORS
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.errors import RequestError, show
from ragboost.types import as_documents, encodable
from ragboost.util.jsonl import read_objects

SYSTEM = "Answer the question from the documents, in as few words as possible."
_DOCUMENTS = "{ragboost: the documents}"  # their place, while a chat template writes the rest


@dataclass(frozen=True, slots=True)
class Case:
    system: tuple[int, ...]  # token ids
    chunks: tuple[tuple[int, ...], ...]  # token ids of each document
    question: tuple[int, ...]
    task: str = "data"  # the group that results are averaged over
    answer: int | None = None  # id of the correct next token; None: use `answers`
    answers: tuple[str, ...] = ()  # correct texts; empty: use full attention's answer
    where: str = field(default="a prompt", compare=False)  # file and line, for messages

    def check_fits(self, model: ModelAdapter, *, max_answer_tokens: int) -> None:
        """Raises `RequestError` if a model cannot compute the prompt with an answer."""
        tokens = [*self.system, *chain(*self.chunks), *self.question]
        vocabulary = int(model.config.vocab_size)
        if max(tokens) >= vocabulary:
            raise RequestError(
                f"{self.where}: has token {max(tokens)}, but the model's vocabulary ends at "
                f"{vocabulary}"
            )
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit is not None and len(tokens) + max_answer_tokens > limit:
            raise RequestError(
                f"{self.where}: has {len(tokens):,} tokens and an answer of up to "
                f"{max_answer_tokens:,}, but the model takes {limit:,}"
            )


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
    task, system = str(row.get("task", "data")), row.get("system")
    if not isinstance(question, str):
        answer = row.get("answer")
        if answer is not None and type(answer) is not int:
            raise RequestError(f"{where}: answer must be a token id, got {show(answer)}")
        return Case(
            _ids(system, f"{where}: system") if system else (),
            tuple(_ids(each, f"{where}: documents[{i}]") for i, each in enumerate(documents)),
            _ids(question, f"{where}: question", other="a text or "),
            task=task,
            answer=answer,
            where=where,
        )
    if tokenizer is None:
        raise RequestError(f"{where}: has texts, but the model has no tokenizer")
    if system is not None and not isinstance(system, str):
        raise RequestError(f"{where}: system must be a text, got {show(system)}")

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(encodable(text), add_special_tokens=False))

    chunks = []
    for document in as_documents(documents, where=f"{where}: documents"):
        title = f"{document.title}\n" if document.title else ""
        chunks.append(ids(f"{title}{document.text}\n\n"))
    before, after = _frame(tokenizer, encodable(system or SYSTEM), question)
    answers = _answers(row, where)
    return Case(before, tuple(chunks), ids(after), task=task, answers=answers, where=where)


def _ids(value: Any, where: str, *, other: str = "") -> tuple[int, ...]:
    is_ids = isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)
    if not is_ids or not value:
        raise RequestError(f"{where} must be {other}a list of token ids, got {show(value)}")
    return tuple(value)


def _answers(row: dict[str, Any], where: str) -> tuple[str, ...]:
    correct = row.get("answers", row.get("answer"))
    values = correct if isinstance(correct, list) else [] if correct is None else [correct]
    if not all(isinstance(value, str | int | float) for value in values):
        raise RequestError(f"{where}: answers must be a text or a list of texts")
    return tuple(map(str, values))


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
        except TEMPLATE_ERRORS as error:
            raise RequestError(f"the model's chat template failed: {error}") from None
        before, found, after = text.partition(_DOCUMENTS)
        if found:
            return tuple(tokenizer.encode(before, add_special_tokens=False)), after
    return tuple(tokenizer.encode(f"{system}\n\n")), f"Question: {question}\nAnswer:"
