"""`ragboost serve --workers`, as real processes in front of a FakeEngine."""

import itertools
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ragboost.cache_events import BlockStored, EventBatch, encode_batch
from ragboost.cli import app
from ragboost.engine_hooks.reports import CONTENT_TYPE, Report, decode_reply, encode
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.events import EventPublisher
from tests.fakes.served import ServedProxy

BODY = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
DOCUMENTS = [f"Document {i}. " + f"about{i} " * 40 for i in range(6)]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(events=True) as engine:
        yield engine


@pytest.fixture
def proxy(engine: FakeEngine) -> Iterator[ServedProxy]:
    with ServedProxy("--backend", engine.url, "--workers", "2") as proxy:
        eventually(lambda: proxy.ready().get("kv_events") and proxy.are_synchronised())
        yield proxy


def ask(
    proxy: ServedProxy, question: str, documents: list[str] = DOCUMENTS, **fields: Any
) -> httpx.Response:
    """Ask on a new connection, which the kernel gives to any worker."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": question}],
        "ragboost": {"documents": documents, **fields},
    }
    return httpx.post(f"{proxy.url}/v1/chat/completions", json=body)


def requests_by_worker(proxy: ServedProxy, outcome: str = "ok") -> dict[str, float]:
    counted = proxy.metric("ragboost_requests_total")
    return {
        worker: value
        for (worker, endpoint, _, how), value in counted.items()
        if endpoint == "chat" and how == outcome
    }


def fewest_nodes(proxy: ServedProxy) -> float:
    nodes = proxy.metric("ragboost_index_nodes")
    return min(nodes.values()) if len(nodes) == 2 else 0


def until_both_answered(proxy: ServedProxy) -> None:
    """Ask on new connections until each worker has answered one."""
    number = iter(range(200))
    eventually(
        lambda: ask(proxy, f"who answers {next(number)}?") and len(requests_by_worker(proxy)) == 2
    )


def assert_nothing_is_lost(engine: FakeEngine, body: bytes) -> None:
    text = body.decode()
    for document in DOCUMENTS:
        assert text.count(document) == 1, document


def test_each_worker_orders_by_what_the_others_have_sent(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    ask(proxy, "first?", DOCUMENTS)
    eventually(lambda: fewest_nodes(proxy) >= 1)

    until_both_answered(proxy)
    answers = [ask(proxy, f"later {i}?", DOCUMENTS[::-1]) for i in range(8)]

    tokens = [each.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for each in answers]
    # In the order given, nothing would be cached. Lengths are estimates, so not every document is.
    assert min(tokens) > 100, tokens
    for received in engine.completions:
        assert_nothing_is_lost(engine, received.body)


def test_a_named_conversation_continues_wherever_its_requests_arrive(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    messages: list[dict[str, str]] = []
    sent: list[str] = []
    for turn in range(8):
        messages.append({"role": "user", "content": f"question {turn}"})
        body = {
            "model": "m",
            "messages": messages,
            "ragboost": {"documents": DOCUMENTS[: 2 + turn % 3], "session_id": "one"},
        }
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body).json()
        messages.append(answer["choices"][0]["message"])
        sent.append(engine.completions[-1].prompt)

    for earlier, later in itertools.pairwise(sent):
        assert later.startswith(earlier)
    assert sent[-1].count(DOCUMENTS[0]) == 1


def test_a_recognised_conversation_continues_wherever_its_requests_arrive(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    until_both_answered(proxy)
    num_before = len(engine.completions)
    messages: list[dict[str, str]] = []
    for turn in range(8):
        documents = DOCUMENTS[: 2 + turn // 2]
        messages.append({"role": "user", "content": f"question {turn}"})
        body = {"model": "m", "messages": messages, "ragboost": {"documents": documents}}
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body).json()
        messages.append(answer["choices"][0]["message"])

    sent = [received.prompt for received in engine.completions[num_before:]]
    assert len(sent) == 8
    for earlier, later in itertools.pairwise(sent):
        assert later.startswith(earlier)


def test_chat_sessions_without_a_store_are_shared_by_the_workers(proxy: ServedProxy) -> None:
    created = httpx.post(f"{proxy.url}/v1/sessions", json={"model": "m"}).json()
    path = f"{proxy.url}/v1/sessions/{created['id']}"

    for turn in range(8):
        answer = httpx.post(
            f"{path}/chat/completions", json={"query": f"turn {turn}", "documents": DOCUMENTS}
        )
        assert answer.status_code == 200, answer.text

    assert httpx.get(path).json()["num_turns"] == 8


def test_one_worker_answers_for_all(engine: FakeEngine, proxy: ServedProxy) -> None:
    until_both_answered(proxy)
    num = len(engine.completions)

    for _ in range(4):
        assert proxy.ready()["workers"] == {"0": "ready", "1": "ready"}
        assert sum(requests_by_worker(proxy).values()) == num
        assert httpx.get(f"{proxy.url}/dashboard/data").json()["totals"]["requests"] == num


def test_every_worker_applies_a_report_of_the_hook(engine: FakeEngine) -> None:
    batch = EventBatch(1.0, [BlockStored(block_hashes=[1], token_ids=[1] * 16, block_size=16)])
    report = Report(
        stream="engine/0", epoch="e", batches=[(0, encode_batch(batch))], is_replay=False
    )
    with (
        FakeEngine() as silent,
        ServedProxy("--backend", silent.url, "--workers", "2") as proxy,
    ):
        eventually(lambda: proxy.are_synchronised())
        url, headers = f"{proxy.url}/v1/index/events", {"content-type": CONTENT_TYPE}
        first = httpx.post(url, content=encode(report), headers=headers)
        assert decode_reply(first.content).replay_from == 0  # both workers ask for all of it
        replay = Report(
            stream="engine/0",
            epoch="e",
            batches=[(0, encode_batch(batch))],
            is_replay=True,
            is_last=True,
        )
        again = httpx.post(url, content=encode(replay), headers=headers)

        assert decode_reply(again.content).replay_from is None
        tokens = proxy.metric("ragboost_kv_resident_tokens")
        assert sorted(key[0] for key in tokens) == ["0", "1"]
        assert set(tokens.values()) == {16.0}


def test_a_killed_worker_is_replaced_and_its_index_fills_again(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    until_both_answered(proxy)
    for i in range(8):
        ask(proxy, f"before {i}?", [f"Text {i} {j} " * 30 for j in range(4)])
    eventually(lambda: fewest_nodes(proxy) >= 9)  # the texts, and the documents before

    proxy.workers[0].kill()
    eventually(lambda: "worker-0 ended with exit code -9" in proxy.log)
    eventually(lambda: proxy.are_synchronised(), ignoring=(httpx.HTTPError, AssertionError))

    eventually(lambda: fewest_nodes(proxy) >= 9, ignoring=(httpx.HTTPError, AssertionError))


def test_requests_survive_the_death_of_the_worker_that_keeps_their_conversation(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    """Handed over, in progress, and its worker killed: the accepting worker answers itself."""
    until_both_answered(proxy)
    engine.misbehave(hold=True)
    results: list[Any] = []

    def send(number: int) -> None:
        try:
            answer = ask(proxy, f"held {number}?", session_id=f"conversation {number}")
            results.append(answer.status_code)
        except httpx.HTTPError as error:  # its connection was to the killed worker
            results.append(type(error).__name__)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    eventually(lambda: engine.num_active == 16)
    assert list(_connections_between(proxy)), "no request was handed over"
    engine.behave()
    proxy.workers[0].kill()
    eventually(lambda: "is lost, answering here" in proxy.log)
    engine.release()
    for thread in threads:
        thread.join()

    assert len(results) == 16
    assert results.count(200) > 0
    assert set(results) <= {200, "ReadError", "RemoteProtocolError"}, results
    for received in engine.completions:
        assert_nothing_is_lost(engine, received.body)


def test_the_indexes_follow_a_restarted_engine(unused_port: int) -> None:
    publisher = EventPublisher()
    endpoints = publisher.endpoint, publisher.replay_endpoint
    with FakeEngine(port=unused_port, events=publisher) as engine:
        proxy = ServedProxy("--backend", engine.url, "--workers", "2").__enter__()
        eventually(lambda: proxy.ready().get("kv_events") and proxy.are_synchronised())
        until_both_answered(proxy)
    try:
        again = EventPublisher(endpoints[0], replay_endpoint=endpoints[1])
        with FakeEngine(port=unused_port, events=again) as engine:
            eventually(
                lambda: set(proxy.metric("ragboost_kv_resident_tokens").values()), equals={0.0}
            )
            ask(proxy, "after?")
            resident = 16.0 * len(engine.cache.blocks)
            eventually(
                lambda: set(proxy.metric("ragboost_kv_resident_tokens").values()), equals={resident}
            )
            assert proxy.are_synchronised()
    finally:
        proxy.__exit__()


def _connections_between(proxy: ServedProxy) -> Iterator[tuple[int, int]]:
    """Yield the connections from one worker to another."""
    listening = {
        connection.laddr.port
        for worker in proxy.workers
        for connection in worker.net_connections("tcp")
        if connection.status == "LISTEN"
    }
    public = int(proxy.url.rpartition(":")[2])
    for worker in proxy.workers:
        for connection in worker.net_connections("tcp"):
            is_out = connection.raddr and connection.raddr.port in listening - {public}
            if connection.status == "ESTABLISHED" and is_out:
                yield connection.laddr.port, connection.raddr.port


def test_sigterm_drains_every_worker_and_refuses_new_connections(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    engine.misbehave(hold=True)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(ask(proxy, "held?").status_code))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: engine.num_active == 8)

    proxy.process.send_signal(signal.SIGTERM)
    eventually(lambda: _is_refused(proxy.url))
    assert all(_is_refused(proxy.url) for _ in range(24))  # by whichever worker had accepted it
    engine.release()
    for thread in threads:
        thread.join()

    assert results == [200] * 8
    assert proxy.process.wait(60) == 0


def _is_refused(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
    except ConnectionRefusedError:
        return True
    return False


def test_keys_and_backends_of_files_change_in_every_worker(
    engine: FakeEngine, tmp_path: Path
) -> None:
    keys, backends, secret = (tmp_path / name for name in ("keys", "backends", "secret"))
    environment = {
        "RAGBOOST_PROXY__API_KEYS_FILE": str(keys),
        "RAGBOOST_BACKEND__FILE": str(backends),
        "RAGBOOST_BACKEND__API_KEY_FILE": str(secret),
        "RAGBOOST_ROUTER__HEALTH_INTERVAL_S": "0.05",
    }

    def write(path: Path, contents: object) -> None:
        new = path.with_suffix(".new")
        new.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        os.replace(new, path)

    def answers(key: str) -> set[int]:
        """Ask on so many new connections that the kernel gives each worker some."""
        headers = {"authorization": f"Bearer {key}"}
        # One client: each reads the certificates of the system, which takes longer than a request.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=proxy.url, headers=headers, limits=limits) as client:
            return {client.post("/v1/chat/completions", json=BODY).status_code for _ in range(24)}

    write(keys, {"a": ["old"]})
    write(backends, [engine.url])
    write(secret, "first")
    with ServedProxy("--workers", "2", environment=environment) as proxy, FakeEngine() as other:
        assert answers("old") == {200}
        write(keys, {"a": ["new", "old"]})
        eventually(lambda: answers("new"), equals={200})
        assert answers("old") == {200}
        write(secret, "second")
        write(backends, [other.url])
        write(keys, {"a": ["new"]})
        eventually(lambda: answers("old"), equals={401})

        def none_is_left() -> bool:
            before = len(engine.requests)
            assert answers("new") == {200}
            return len(engine.requests) == before

        eventually(none_is_left)
        assert {r.header("authorization") for r in other.requests[-24:]} == {"Bearer second"}
        assert "Bearer" not in proxy.log


def test_workers_stop_when_the_supervisor_is_killed(proxy: ServedProxy) -> None:
    workers = proxy.workers
    assert len(workers) == 2

    os.kill(proxy.process.pid, signal.SIGKILL)

    for worker in workers:
        worker.wait(60)


@pytest.mark.parametrize("options", [["--workers", "0"], ["--workers", "65"]])
def test_a_wrong_number_of_workers_is_refused(options: list[str]) -> None:
    done = CliRunner().invoke(app, ["serve", *options])

    assert done.exit_code != 0
    assert "workers" in str(done.exception or done.output)


def test_a_port_that_another_proxy_serves_is_refused(
    engine: FakeEngine, proxy: ServedProxy
) -> None:
    port = proxy.url.rpartition(":")[2]
    second = ServedProxy("--backend", engine.url, "--workers", "2", "--port", port)

    with pytest.raises(AssertionError, match="choose another address or port"):
        second.__enter__()

    assert second.process.returncode == 2


def test_a_setting_that_no_worker_can_use_ends_the_start(engine: FakeEngine) -> None:
    prior = {"RAGBOOST_BACKENDS": json.dumps([{"url": engine.url}, {"url": engine.url}])}
    proxy = ServedProxy("--workers", "2", environment=prior)

    with pytest.raises(AssertionError, match="two have the name"):
        proxy.__enter__()

    assert proxy.process.returncode == 2
