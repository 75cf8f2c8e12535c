"""Sessions on a database that is locked or full: no turn is answered that is not stored."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from ragboost.proxy.sessions import database
from ragboost.proxy.sessions import sqlite as sqlite_store
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.proxy.conversations.chats import contents

FAILURES = "ragboost_session_store_failures_total"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sqlite_store, "_BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sqlite_store, "_CHECK_TIMEOUT_S", 0.05)
    return tmp_path / "sessions.db"


@pytest.fixture
def client(start_proxy: Callable[..., ProxyServer], path: Path) -> Iterator[httpx.Client]:
    url = start_proxy(session={"store": "sqlite", "path": path}).url
    with httpx.Client(base_url=url) as client:
        yield client


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def create(client: httpx.Client) -> str:
    return str(client.post("/v1/sessions", json={"model": "m"}).json()["id"])


def ask(client: httpx.Client, session: str, query: str, **fields: bool) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/chat/completions", json={"query": query, **fields})


def questions(client: httpx.Client, session: str) -> list[str]:
    kept = client.get(f"/v1/sessions/{session}").json()["messages"]
    return [message["content"] for message in kept if message["role"] == "user"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_on_a_locked_database_is_refused_before_a_model_works(
    client: httpx.Client, engine: FakeEngine, path: Path, stream: bool
) -> None:
    session = create(client)
    assert ask(client, session, "one?", stream=stream).status_code == 200
    with locked(path):
        refused = ask(client, session, "two?", stream=stream)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "the session store fails: SQLite: SQLITE_BUSY"
        assert len(engine.completions) == 1, "no model works for a lost turn"
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["sessions"] == "SQLite: SQLITE_BUSY"
    assert read_metric(str(client.base_url).rstrip("/"), FAILURES) >= 2
    assert questions(client, session) == ["one?"]
    assert ask(client, session, "three?", stream=stream).status_code == 200
    assert contents(engine.completions[-1])[::2] == ["one?", "three?"]
    assert client.get("/ready").json() == {"status": "ready"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_during_which_the_database_is_locked_is_no_complete_answer(
    client: httpx.Client, engine: FakeEngine, path: Path, stream: bool
) -> None:
    session = create(client)
    if stream:
        with held_turn(client, engine, session, "one?") as (first, chunks), locked(path):
            engine.release()
            answer = first + "".join(chunks)
        assert "[DONE]" not in answer
        last = answer.removesuffix("\n\n").rpartition("\n\n")[2]
        assert last.startswith('data: {"error"')
        assert "not stored: the session store fails: SQLite: SQLITE_BUSY" in last
    else:
        engine.misbehave(hold=True)
        with ThreadPoolExecutor(1) as thread:
            turn = thread.submit(ask, client, session, "one?")
            eventually(lambda: engine.num_active, equals=1)
            with locked(path):
                engine.release()
                with pytest.raises(httpx.RemoteProtocolError):
                    turn.result()
    assert questions(client, session) == []


def test_the_openai_sdk_sees_that_a_streamed_turn_is_not_stored(
    client: httpx.Client, engine: FakeEngine, path: Path
) -> None:
    headers = {"authorization": "Bearer k"}
    session = client.post("/v1/sessions", json={}, headers=headers).json()["id"]
    engine.misbehave(hold_after_chunks=1)
    with (
        openai.OpenAI(base_url=f"{client.base_url}/v1/sessions/{session}", api_key="k") as sdk,
        sdk.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "q?"}], stream=True
        ) as stream,
        locked(path),
    ):
        engine.release()
        with pytest.raises(openai.APIError, match="not stored"):
            list(stream)


def test_a_file_that_is_removed_is_noticed_before_a_model_works(
    client: httpx.Client, engine: FakeEngine, path: Path
) -> None:
    session = create(client)
    path.unlink()
    assert client.get("/ready").json()["sessions"] == "SQLite: RemovedFileError"
    assert ask(client, session, "one?").status_code == 503
    assert client.post("/v1/sessions", json={}).status_code == 503
    assert not engine.completions


def test_a_full_disk_ends_no_session_with_an_old_history(
    start_proxy: Callable[..., ProxyServer],
    engine: FakeEngine,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = database.connect

    def with_limit(path: str, *, timeout_s: float) -> sqlite3.Connection:
        connection = connect(path, timeout_s=timeout_s)
        connection.execute("PRAGMA max_page_count = 24")  # of 4 KiB
        return connection

    monkeypatch.setattr(database, "connect", with_limit)
    url = start_proxy(session={"store": "sqlite", "path": path}).url
    with httpx.Client(base_url=url) as client:
        session, stored = create(client), []
        for at in range(30):
            question = f"{at}? " + "x" * 8000
            try:
                answer = ask(client, session, question)
            except httpx.RemoteProtocolError:
                break
            assert answer.status_code == 200
            stored.append(question)
        assert 0 < len(stored) < 30
        assert questions(client, session) == stored
        refused = ask(client, session, "x" * 8000)
        assert refused.status_code == 503
        assert client.get("/ready").json()["sessions"] == "SQLite: SQLITE_FULL"
        other = create_refused(client)
        assert other.status_code == 503
        assert client.post("/v1/chat/completions", json={"messages": []}).status_code == 200


@contextmanager
def held_turn(
    client: httpx.Client, engine: FakeEngine, session: str, query: str
) -> Iterator[tuple[str, Iterator[str]]]:
    """Ask, and stop the engine behind the first chunk: that chunk, and those that follow."""
    engine.misbehave(hold_after_chunks=1)
    url = f"/v1/sessions/{session}/chat/completions"
    with client.stream("POST", url, json={"query": query, "stream": True}) as answer:
        chunks = answer.iter_text()
        yield next(chunks), chunks


def create_refused(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/sessions", json={"system": "s" * 100_000})


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_session_that_is_evicted_during_its_turn_comes_back(
    start_proxy: Callable[..., ProxyServer], engine: FakeEngine, path: Path, store: str
) -> None:
    bounds = {"store": store, "path": path, "max_sessions": 1}
    with httpx.Client(base_url=start_proxy(session=bounds).url) as client:
        session = create(client)
        ask(client, session, "one?")
        with held_turn(client, engine, session, "two?") as (first, chunks):
            create(client)
            assert client.get(f"/v1/sessions/{session}").status_code == 404
            engine.release()
            whole = first + "".join(chunks)
        assert "[DONE]" in whole
        assert questions(client, session) == ["one?", "two?"]
        ask(client, session, "three?")
        assert contents(engine.completions[-1])[::2] == ["one?", "two?", "three?"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_session_that_is_evicted_and_deleted_during_its_turn_does_not_come_back(
    start_proxy: Callable[..., ProxyServer], engine: FakeEngine, path: Path, store: str
) -> None:
    bounds = {"store": store, "path": path, "max_sessions": 1}
    with httpx.Client(base_url=start_proxy(session=bounds).url) as client:
        session = create(client)
        with held_turn(client, engine, session, "one?") as (first, chunks):
            create(client)
            other = {"authorization": "Bearer someone-else"}
            assert client.delete(f"/v1/sessions/{session}", headers=other).status_code == 404
            assert client.delete(f"/v1/sessions/{session}").status_code == 200
            engine.release()
            whole = first + "".join(chunks)
        assert "not stored" in whole
        assert client.get(f"/v1/sessions/{session}").status_code == 404


def test_a_turn_of_a_session_that_was_deleted_meanwhile_is_no_complete_answer(
    client: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    session = create(client)
    with held_turn(client, engine, session, "one?") as (first, chunks):
        assert client.delete(f"/v1/sessions/{session}").status_code == 200
        engine.release()
        whole = first + "".join(chunks)
    assert "[DONE]" not in whole
    assert "not stored" in whole
    eventually(lambda: client.get(f"/v1/sessions/{session}").status_code, equals=404)
    assert "ERROR" not in {record.levelname for record in caplog.records}  # the client's own doing
