"""`proxy.record`: the shape of requests in a bounded file, and not a word of theirs."""

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from ragboost.batch.forecast import forecast
from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError
from ragboost.evaluation.loading import load_questions
from ragboost.evaluation.traces import read_trace
from ragboost.proxy.app import create_app
from ragboost.proxy.hosted.report import lint_log
from ragboost.proxy.observability.request_log import RequestLog
from ragboost.requests.recorded_request import RecordedRequest
from ragboost.requests.wires.usage import Usage
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

CHAT = "/v1/chat/completions"
TEXTS = [f"Secret number {i} is kept. " * 20 for i in range(6)]
SHAPE = RecordedRequest(0.0, "t", None, "h", 10, ("a", "b"), (100, 200), 400)


def ask(proxy: ProxyServer, content: str, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(proxy.url + CHAT, json=body, headers={"authorization": "Bearer hidden"})


def prompt(name: str, ids: list[int]) -> str:
    documents = "\n".join(f"<document>{TEXTS[i]}</document>" for i in ids)
    return f"Rules of the house.\nThe user is {name}.\n\n{documents}\nWhy is it so?"


def record(engine: FakeEngine, path: Path, requests: int) -> list[dict[str, Any]]:
    with ProxyServer(proxy_settings(engine.url, proxy={"record": path})) as proxy:
        for number in range(requests):
            content = prompt(f"number {number}", [number % 6, (number + 1) % 6])
            assert ask(proxy, content).status_code == 200
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_hashes_and_lengths_and_no_text(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    rows = record(engine, path, 40)

    assert len(rows) == 40
    assert all(RecordedRequest.of(row) is not None for row in rows)
    assert [row["t_s"] for row in rows] == sorted(row["t_s"] for row in rows)
    last, again = rows[-1], rows[-7]
    assert last["doc_ids"] == again["doc_ids"]
    assert last["head"] != again["head"], "the texts before their documents differ"
    assert last["head_tokens"] > 0
    for word in ("Secret", "Rules", "user", "Why", "hidden", "number"):
        assert word not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_tokens_of_the_parts_add_up_to_the_prompt(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with ProxyServer(proxy_settings(engine.url, proxy={"record": path})) as proxy:
        documents = [{"id": "a", "text": TEXTS[0]}, {"id": "b", "text": TEXTS[1]}]
        answer = ask(proxy, "Why?", ragboost={"documents": documents, "session_id": "s"})

    [row] = [json.loads(line) for line in path.read_text().splitlines()]
    assert row["session"] not in (None, "s")
    parts = row["head_tokens"] + sum(row["doc_tokens"]) + row["tail_tokens"]
    assert parts == max(answer.json()["usage"]["prompt_tokens"], parts - row["tail_tokens"])


def test_simulate_and_the_doctor_read_the_log(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    record(engine, path, 60)

    found = forecast(path)

    assert (found.requests, found.documents, found.rejected) == (60, 120, 0)
    assert found.points[-1].online == 0.0, "nothing is cached behind text that differs"
    assert lint_log(path).requests == 60


def test_eval_order_says_why_it_cannot_read_the_log(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    record(engine, path, 3)

    with pytest.raises(RequestError, match=r"proxy\.record holds ids and lengths only"):
        load_questions(path)


def test_a_full_disk_costs_lines_and_no_request(engine: FakeEngine) -> None:
    with ProxyServer(proxy_settings(engine.url, proxy={"record": "/dev/full"})) as proxy:
        for number in range(5):
            assert ask(proxy, prompt(f"{number}", [0, 1])).status_code == 200
        name, labels = "ragboost_recorded_requests_total", {"result": "dropped"}
        eventually(lambda: read_metric(proxy.url, name, **labels) == 5)


def test_a_disk_that_is_full_within_a_line_costs_no_line_of_another_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, exchange, write = (
        tmp_path / "log.jsonl",
        cast(Any, SimpleNamespace(started=0.0)),
        os.write,
    )
    one, other = [RequestLog(path, max_bytes=4000, count=lambda *_: None) for _ in range(2)]
    one.open()
    other.open()
    for _ in range(3):
        other.add(exchange, SHAPE, None)
    asyncio.run(other.close())
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    one.add(exchange, SHAPE, None)
    asyncio.run(one.close())

    assert len(read_trace(path)) == 3


def test_a_path_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    settings = Settings.model_validate({"proxy": {"record": tmp_path / "no" / "log.jsonl"}})

    with pytest.raises(ConfigError, match=r"proxy\.record: cannot write .* No such file"):
        create_app(settings)


@pytest.mark.parametrize("prompt_tokens", [0, 2**53])
def test_a_log_is_replayed_whatever_lengths_an_engine_reported(
    tmp_path: Path, prompt_tokens: int
) -> None:
    log = RequestLog(tmp_path / "log.jsonl", max_bytes=4000, count=lambda *_: None)
    exchange: Any = SimpleNamespace(started=0.0)
    log.open()
    log.add(exchange, RecordedRequest(0.0, "t", None, "", 0, (), (), 9), Usage(prompt_tokens))
    log.add(exchange, SHAPE, Usage(prompt_tokens))
    asyncio.run(log.close())

    assert len(read_trace(tmp_path / "log.jsonl")) == 2


def test_the_files_stay_below_their_limit(tmp_path: Path) -> None:
    path, counts = tmp_path / "log.jsonl", {"written": 0, "dropped": 0}

    def count(result: str, num: int) -> None:
        counts[result] += num

    log = RequestLog(path, max_bytes=4000, count=count)
    exchange: Any = SimpleNamespace(started=0.0)
    log.open()
    for _ in range(200):
        log.add(exchange, SHAPE, None)
    long = ("x" * 16,) * 200
    log.add(exchange, RecordedRequest(0.0, "t", None, "h", 1, long, (1,) * 200, 1), None)
    asyncio.run(log.close())

    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["log.jsonl", "log.jsonl.1"]
    assert sum(each.stat().st_size for each in files) <= 4000
    assert counts == {"written": 200, "dropped": 1}
    for file in files:
        assert all(json.loads(line) for line in file.read_text().splitlines())
