"""Keep answers in a file and ask for those that are missing. An answer is found by the content of
its request, so that a run goes on where it stopped and equal prompts are asked once."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ragboost.errors import BackendConnectionError, BackendError, RequestError
from ragboost.evaluation.endpoint import (
    ChatEndpoint,
    ModelAnswer,
    RefusedEndpointError,
    RefusedPromptError,
)
from ragboost.evaluation.prompts import Messages
from ragboost.jsonl import decode, read_lines

_MAX_FAILURES_IN_A_ROW = 20


def answer_key(payload: Mapping[str, Any]) -> str:
    text = json.dumps(payload, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class AnswerFile:
    """Answers by key, appended to a JSON Lines file as they come; a torn last line is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[str, ModelAnswer] = {}
        if path.is_file():
            for line in read_lines(path):
                try:
                    row = decode(line.raw)
                    key, values = row.pop("key"), row
                    self._answers[key] = ModelAnswer(**values)
                except (RequestError, TypeError, AttributeError, KeyError):
                    continue
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise RequestError(f"cannot write {path}: {error.strerror}") from None
        if self._file.tell() and not _ends_a_line(path):
            self._file.write(b"\n")

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> ModelAnswer:
        return self._answers[key]

    def add(self, key: str, answer: ModelAnswer) -> None:
        self._answers[key] = answer
        row = {"key": key, **answer._asdict()}
        try:
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise RequestError(f"cannot write {self.path}: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def ask_all(
    endpoint: ChatEndpoint,
    wanted: Mapping[str, Messages],
    answers: AnswerFile,
    *,
    concurrency: int,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, str]:
    """Ask for all answers that are missing, and return the error of each that failed, by key. Stops
    and closes the endpoint. Raises `BackendError` if the first request failed, twenty in a row did,
    or the endpoint refuses all."""
    missing = {key: messages for key, messages in wanted.items() if key not in answers}
    if not missing:
        return {}
    endpoint.probe()
    failures: dict[str, str] = {}
    in_a_row = 0
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="eval-order")
    try:
        requests = _ended_requests(endpoint, missing, pool, concurrency=concurrency)
        for done, (key, request) in enumerate(requests, start=1):
            try:
                answers.add(key, request.result())
                in_a_row = 0
            except BackendError as error:
                failures[key] = str(error)
                in_a_row += 1
                is_first = done == 1 and not isinstance(error, RefusedPromptError)
                if is_first or isinstance(error, RefusedEndpointError):
                    raise
                if in_a_row >= _MAX_FAILURES_IN_A_ROW:
                    raise BackendConnectionError(
                        f"{in_a_row} requests in a row failed, the last one: {error}. Answers "
                        f"so far are in {answers.path}; run again to go on"
                    ) from None
            on_answer(done, len(missing))
        return failures
    finally:
        endpoint.stop()
        pool.shutdown(cancel_futures=True)
        endpoint.close()


def _ended_requests(
    endpoint: ChatEndpoint,
    missing: Mapping[str, Messages],
    pool: ThreadPoolExecutor,
    *,
    concurrency: int,
) -> Iterator[tuple[str, Future[ModelAnswer]]]:
    """Ask, and yield each request with its key when it has ended. The first one is alone: its
    answer shows that the endpoint, key and model are right."""
    running: dict[Future[ModelAnswer], str] = {}
    queue = iter(missing.items())
    limit = 1
    while True:
        while len(running) < limit and (following := next(queue, None)) is not None:
            key, messages = following
            running[pool.submit(endpoint.ask, messages)] = key
        if not running:
            return
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        for request in ended:
            yield running.pop(request), request
        limit = concurrency
