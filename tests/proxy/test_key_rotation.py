"""Keys come from files that change while the proxy runs, and show in no log."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ragboost.config import Settings
from ragboost.errors import ConfigError
from ragboost.proxy import watched_file
from ragboost.proxy.app import create_app
from ragboost.proxy.asgi.keys import ApiKeys, UnauthorizedError
from ragboost.proxy.watched_file import Refreshable, Refresher, WatchedFile
from tests.eventually import DEADLINE_S, eventually, eventually_async
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

Start = Callable[..., ProxyServer]
FAST = {"health_interval_s": 0.02}
BODY = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}


def write(path: Path, contents: str) -> None:
    """Replace a file at once, as a mounted secret is replaced."""
    new = path.with_suffix(".new")
    new.write_text(contents)
    os.replace(new, path)


def status(proxy: ProxyServer, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{proxy.url}/v1/chat/completions", json=BODY, headers=headers).status_code


def test_a_client_key_counts_from_its_entry_until_it_is_removed(
    start_proxy: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "keys.json"
    write(path, json.dumps({"search": ["old-secret"]}))
    proxy = start_proxy(proxy={"api_keys_file": path}, router=FAST)
    assert (status(proxy, "old-secret"), status(proxy, "new-secret")) == (200, 401)

    write(path, json.dumps({"search": ["new-secret", "old-secret"]}))
    eventually(lambda: status(proxy, "new-secret") == 200)
    assert status(proxy, "old-secret") == 200
    write(path, json.dumps({"search": "new-secret"}))
    eventually(lambda: status(proxy, "old-secret") == 401)
    assert status(proxy, "new-secret") == 200
    assert "secret" not in caplog.text.replace(str(path), "")


def test_a_team_keeps_its_indexes_when_its_key_changes(
    start_proxy: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    write(path, json.dumps({"search": ["a"], "support": ["b"]}))
    proxy = start_proxy(proxy={"api_keys_file": path}, router=FAST)
    documents = [{"text": f"Document {at}. " + "Fact of many. " * 40} for at in range(3)]

    def predicted(key: str) -> int:
        answer = httpx.post(
            f"{proxy.url}/v1/chat/completions",
            json={**BODY, "ragboost": {"documents": documents}},
            headers={"x-api-key": key},
        )
        return int(answer.headers["x-ragboost-cached-tokens-predicted"])

    assert predicted("a") == 0
    write(path, json.dumps({"search": ["c"], "support": ["b"]}))
    eventually(lambda: status(proxy, "c") == 200)
    assert predicted("c") > 100
    assert predicted("b") == 0


@pytest.mark.parametrize(
    "contents",
    ['{"search": ["secr', "", "{}", "[]", '{"search": []}', '{"a": "secret", "b": "secret"}'],
)
async def test_a_file_that_is_half_written_or_has_no_keys_changes_nothing(
    contents: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    write(path, json.dumps({"search": ["secret"]}))
    settings = Settings.model_validate({"proxy": {"api_keys_file": path}})
    files: list[Refreshable] = []
    state_keys = ApiKeys.watched(settings, files)
    write(path, contents)
    for _ in range(2):
        await files[0].refresh()
    assert state_keys.check([(b"x-api-key", b"secret")])
    with pytest.raises(UnauthorizedError):
        state_keys.check([])
    assert caplog.text.count("still counts") == 1
    assert "secr" not in caplog.text.replace(str(path), "")
    with pytest.raises(ConfigError, match="api_keys_file"):
        create_app(settings)


def test_the_key_of_reports_is_refused_to_clients(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write(path, json.dumps({"search": ["secret"]}))
    settings = Settings.model_validate(
        {"proxy": {"api_keys_file": path}, "engine_hooks": {"report_key": "secret"}}
    )
    with pytest.raises(ConfigError, match="report_key"):
        create_app(settings)


def test_the_backends_key_is_read_again(
    start_proxy: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    write(path, "first\n")
    proxy = start_proxy(backend={"api_key_file": path}, router=FAST)

    def sent() -> str | None:
        assert status(proxy, "client") == 200
        return engine.requests[-1].header("authorization")

    assert sent() == "Bearer first"
    write(path, "two\nlines\n")
    write(path, "second\n")
    eventually(lambda: sent() == "Bearer second")


async def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    for name in ("fifo", "large", "missing", "."):
        with pytest.raises(ConfigError, match="s: "):
            WatchedFile(tmp_path / name, setting="s", apply=lambda _: None)


async def test_what_is_no_file_any_more_is_not_left_open(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one")
    file = WatchedFile(path, setting="proxy.api_keys_file", apply=lambda contents: None)
    path.unlink()
    path.mkdir()
    await file.refresh()
    for _ in range(5):
        await file.refresh()
    assert not is_open(path)


def is_open(path: Path) -> bool:
    return str(path.resolve()) in map(os.path.realpath, Path("/proc/self/fd").iterdir())


async def test_a_file_that_hangs_holds_no_other_and_has_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_open, looks = threading.Event(), threading.Semaphore(0)
    contents: list[bytes] = []
    for name in ("hung", "other"):
        write(tmp_path / name, "one")
    parts = [
        WatchedFile(tmp_path / name, setting=name, apply=contents.append)
        for name in ("hung", "other")
    ]
    opener = watched_file._open_at_once

    def open_late(path: str, flags: int) -> int:
        if path.endswith("hung"):
            looks.release()
            may_open.wait()
        return opener(path, flags)

    monkeypatch.setattr(watched_file, "_open_at_once", open_late)
    monkeypatch.setattr(watched_file, "_TIMEOUT_S", 0.01)
    refresher = Refresher(parts, interval_s=0.001)
    await refresher.open()
    try:
        await eventually_async(lambda: "hung does not answer" in caplog.text)
        write(tmp_path / "other", "two")
        await eventually_async(lambda: contents[2:], equals=[b"two"])
        assert looks.acquire(timeout=DEADLINE_S)
        assert not looks.acquire(blocking=False)
        write(tmp_path / "hung", "three")
        may_open.set()
        await eventually_async(lambda: contents[3:], equals=[b"three"])
    finally:
        may_open.set()
        await refresher.close()


def test_a_key_costs_the_same_among_thousands(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write(path, json.dumps({f"team {number}": [f"key {number}"] for number in range(30_000)}))
    settings = Settings.model_validate({"proxy": {"api_keys_file": path}})
    keys = ApiKeys.watched(settings, [])
    calls = 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        team = keys.check([(b"authorization", b"Bearer key 29999")])
    finally:
        sys.setprofile(None)
    assert team
    assert calls < 100
    with pytest.raises(UnauthorizedError):
        keys.check([(b"authorization", b"Bearer key 30000")])
