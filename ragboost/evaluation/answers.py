"""Keep answers in a file and ask for those that are missing. An answer is found by the content of
its request, so that a run goes on where it stopped and equal prompts are asked once."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any

from ragboost.errors import BackendConnectionError, BackendError, RequestError
from ragboost.evaluation.arms import Messages
from ragboost.evaluation.endpoint import ChatEndpoint, RefusedEndpointError, RefusedPromptError
from ragboost.util.jsonl import decode, read_lines

_MAX_FAILURES_IN_A_ROW = 20


def answer_key(payload: Mapping[str, Any]) -> str:
    text = json.dumps(payload, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class AnswerFile:
    """Answers by key, appended to a JSON Lines file as they come; a torn last line is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[str, str] = {}
        if path.is_file():
            for line in read_lines(path):
                try:
                    row = decode(line.raw)
                    self._answers[row["key"]] = str(row["text"])
                except (RequestError, TypeError, KeyError):
                    continue
        self._append(b"")  # fails before anything is asked

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> str:
        return self._answers[key]

    def add(self, key: str, answer: str) -> None:
        self._answers[key] = answer
        row = json.dumps({"key": key, "text": answer}).encode()
        self._append(b"\n" + row)  # behind a line that was cut off

    def _append(self, data: bytes) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise RequestError(f"cannot write {self.path}: {error.strerror}") from None


async def ask_all(
    endpoint: ChatEndpoint,
    wanted: Mapping[str, Messages],
    answers: AnswerFile,
    *,
    concurrency: int,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, str]:
    """Ask for all answers that are missing, and return the error of each that failed, by key.
    Closes the endpoint. Raises `BackendError` if the first request failed, twenty in a row did, or
    the endpoint refuses all."""
    missing = {key: messages for key, messages in wanted.items() if key not in answers}
    failures: dict[str, str] = {}
    queue = iter(missing.items())
    done = in_a_row = 0

    async def ask(key: str, messages: Messages) -> None:
        nonlocal done, in_a_row
        try:
            answers.add(key, await endpoint.ask(messages))
            in_a_row = 0
        except BackendError as error:
            failures[key] = str(error)
            in_a_row += 1
            is_first = not done and not isinstance(error, RefusedPromptError)
            if is_first or isinstance(error, RefusedEndpointError):
                raise
            if in_a_row >= _MAX_FAILURES_IN_A_ROW:
                raise BackendConnectionError(
                    f"{in_a_row} requests in a row failed, the last one: {error}. Answers so far "
                    f"are in {answers.path}; run again to go on"
                ) from None
        done += 1
        on_answer(done, len(missing))

    async def ask_from_queue(limit: int | None = None) -> None:
        for key, messages in islice(queue, limit):
            await ask(key, messages)

    async with aclosing(endpoint):
        await ask_from_queue(1)  # shows that the endpoint, key and model are right
        await asyncio.gather(*[ask_from_queue() for _ in range(concurrency)])
    return failures
