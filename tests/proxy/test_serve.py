"""`ragboost serve` as a process: starts, drains, stops."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ragboost.cli import app
from ragboost.config import ProxySettings, Settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.server import _signals_only_stop, listen, make_server, serve
from tests.eventually import eventually
from tests.fakes import FakeEngine

ROOT = Path(__file__).parents[2]
SERVE = (sys.executable, "-m", "ragboost", "serve")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}

Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `ragboost serve` and return the process and its URL."""
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str, within: Sequence[str] = ()) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "ragboost", "serve", "--port", "0", *arguments],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"listening on (http://\S+),", line):
                return process, found[1]
        raise AssertionError("ragboost serve did not start")

    yield run
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def is_refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM] * 2, [signal.SIGHUP]])
def test_a_stream_is_finished_before_the_proxy_stops(
    start: Start, engine: FakeEngine, signals: list[signal.Signals]
) -> None:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and signal.SIGHUP in signals:
        pytest.skip("the tests were started by nohup, and so is the proxy")
    process, url = start("--backend", engine.url)
    engine.misbehave(hold_after_chunks=1)
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={**CHAT, "stream": True}
    ) as answer:
        chunks = answer.iter_raw()
        first = next(chunks)
        for each in signals:
            process.send_signal(each)
        eventually(lambda: is_refused(url))
        engine.release()
        whole = first + b"".join(chunks)
    assert whole.endswith(b"data: [DONE]\n\n")
    assert process.wait() == 0


@pytest.mark.parametrize("is_boosted", [False, True])
def test_a_client_that_does_not_read_costs_no_memory(
    start: Start, engine: FakeEngine, is_boosted: bool
) -> None:
    process, url = start("--backend", engine.url)
    event = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
    headers = {"content-type": "text/event-stream"}
    engine.misbehave(status=200, body=event * (100_000_000 // len(event)), headers=headers)
    body = b'{"messages":[{"role":"user","content":"why?"}],"stream":true%b}' % (
        b',"ragboost":{"documents":["one","two"]}' if is_boosted else b""
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
    address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    before = psutil.Process(process.pid).memory_info().rss
    with socket.create_connection(address) as connection:
        connection.sendall(head % len(body) + body)
        eventually(lambda: len(engine.requests), equals=1)
        # In each turn of its event loop the proxy would read 64 kB or more, if it went on reading.
        with httpx.Client(base_url=url) as other:
            assert all(other.get("/health").status_code == 200 for _ in range(1000))
        assert psutil.Process(process.pid).memory_info().rss - before < 30_000_000


def test_a_turn_that_meets_a_full_disk_is_answered_and_the_next_one_refused(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    mount = f'mount -t tmpfs -o size=24m none {tmp_path} && exec "$@"'
    mounted = ("unshare", "-rm", "sh", "-c", mount, "sh")
    if subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system of its own")
    store = (f"RAGBOOST_SESSION__PATH={tmp_path}/sessions.db", "RAGBOOST_SESSION__STORE=sqlite")
    process, url = start("--backend", engine.url, within=(*mounted, "env", *store))
    full = Path(f"/proc/{process.pid}/root{tmp_path}/full")
    with httpx.Client(base_url=url) as client:
        session = client.post("/v1/sessions", json={"model": "m"}).json()["id"]
        path = f"/v1/sessions/{session}/chat/completions"
        assert client.post(path, json={"query": "one?"}).status_code == 200
        questions = ["one?"]
        while client.get("/ready").json()["status"] == "ready":
            with full.open("ab", buffering=0) as file, suppress(OSError):  # no space left
                while file.write(bytes(4096)):
                    pass
            question = f"{len(questions)}? " + "x" * 100_000
            assert client.post(path, json={"query": question}).status_code == 200
            questions.append(question)
        assert client.get("/ready").json()["sessions"] == "SQLite: ENOSPC"
        assert client.post(path, json={"query": "no?"}).status_code == 503
        assert len(engine.completions) == len(questions)
        kept = client.get(f"/v1/sessions/{session}").json()["messages"]
        assert [each["content"] for each in kept[::2]] == questions
        full.unlink()
        assert client.get("/ready").json() == {"status": "ready"}
        assert client.post(path, json={"query": "yes?"}).status_code == 200


def test_a_trailing_v1_of_the_backend_is_not_sent_twice(start: Start, engine: FakeEngine) -> None:
    _, url = start("--backend", f"{engine.url}/v1/")
    assert httpx.get(f"{url}/v1/models").status_code == 200
    asked = [request.path for request in engine.requests]  # the proxy asks by itself, too
    assert "/v1/models" in asked
    assert not any(path.startswith("/v1/v1") for path in asked)


def test_a_backend_that_is_not_there_is_said_at_the_start(start: Start, unused_port: int) -> None:
    process, _ = start("--backend", f"http://127.0.0.1:{unused_port}")

    assert process.stderr is not None
    lines = list(islice(process.stderr, 3))  # behind the addresses of clients and dashboard
    assert f"at http://127.0.0.1:{unused_port} is unhealthy" in lines[-1]


def test_several_backends_are_several_flags(start: Start, engine: FakeEngine) -> None:
    with FakeEngine() as other:
        _, url = start("--backend", engine.url, "--backend", other.url)
        answers = [httpx.post(f"{url}/v1/chat/completions", json=CHAT) for _ in range(2)]
        names = {each.url.removeprefix("http://") for each in (engine, other)}
        assert {answer.headers["x-ragboost-backend"] for answer in answers} <= names
        assert len(engine.completions) + len(other.completions) == 2


def test_the_access_log_goes_to_standard_output(engine: FakeEngine) -> None:
    process = subprocess.Popen(
        [*SERVE, "--port", "0", "--access-log", "--backend", engine.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = next(m for line in process.stderr if (m := re.search(r"on (http://\S+),", line)))
        httpx.post(f"{found[1]}/v1/chat/completions", json=CHAT)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["status"] == 200
    finally:
        process.kill()
        process.communicate()


def first_lines(num: int, *arguments: str) -> list[str]:
    """The first lines of the log of `ragboost serve`, which is then killed."""
    command = [*SERVE, "--port", "0", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        return list(islice(process.stderr, num))
    finally:
        process.kill()
        process.communicate()


def test_the_log_has_times_a_level_and_if_wanted_an_object_per_event(
    unused_port: int, tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    backend = f"http://127.0.0.1:{unused_port}"
    file.write_text(f'[backend]\nurl = "{backend}"\n[log]\nformat = "json"\n')
    start = ("--config", str(file))

    first, second, clients, page, problem = map(json.loads, first_lines(5, *start))
    (warning,) = first_lines(1, *start, "--log-level", "warning")
    file.write_text(f'[backend]\nurl = "{backend}"\n')
    (text,) = first_lines(1, *start)

    assert (first["message"], first["level"]) == (f"settings from {file}", "INFO")
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["message"].endswith(f"backend {backend}")
    assert re.fullmatch(r"clients: http://127\.0\.0\.1:\d+/v1", clients["message"])
    assert re.fullmatch(r"dashboard: http://127\.0\.0\.1:\d+/dashboard", page["message"])
    assert problem["message"].startswith(f"backend 127.0.0.1:{unused_port} at http://")
    assert json.loads(warning)["level"] == "WARNING"
    assert re.match(
        r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00 INFO ragboost.cli.servers: settings from", text
    )


def test_a_taken_port_is_one_sentence_and_exit_code_2(engine: FakeEngine) -> None:
    port = engine.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "ragboost", "serve", "--port", port],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_embedded_and_backend_exclude_each_other() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ragboost", "serve", "--embedded", "--backend", "http://x"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "--backend" in done.stderr) == (2, True)


def test_a_model_without_the_embedded_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="--model is for --embedded"):
        app(["serve", "--model", "somewhere"], standalone_mode=False)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"session": {"store": "sqlite", "path": "/missing/x.db"}}, "session.path: cannot use"),
        ({"tokens": {"tokenizer": "/missing"}}, "tokens.tokenizer: /missing/?.* does not exist"),
        ({"session": {"url": "redis://10.0.0.1"}}, 'needs session.store = "redis", got .memory'),
        ({"engine_hooks": {"replay_endpoint": "tcp://a:1"}}, r"needs engine_hooks\.endpoint"),
        ({"engine_hooks": {"endpoint": "tcp://127.0.0.1"}}, r"endpoint': cannot use 'tcp:"),
        ({"boost": {"share": 0.5}, "proxy": {"shadow": True}}, r"boost\.share has no effect with"),
        ({"backend": {"url": "http://a", "file": "b.json"}}, r"either backend\.url \(--backend\)"),
    ],
)
def test_settings_that_cannot_be_used_are_said_before_the_first_request(
    sections: dict[str, dict[str, Any]], message: str
) -> None:
    proxy = {"port": 0, **sections.get("proxy", {})}
    settings = Settings.model_validate({**sections, "proxy": proxy})
    with pytest.raises(ConfigError, match=message):
        serve(settings)


def test_kv_events_are_not_bound_to_an_address_that_is_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        endpoint = f"tcp://*:{taken.getsockname()[1]}"
        settings = Settings.model_validate(
            {"proxy": {"port": 0}, "engine_hooks": {"endpoint": endpoint}}
        )
        with pytest.raises(ConfigError, match=r"cannot use 'tcp:.* in use"):
            serve(settings)


@pytest.mark.slow
def test_embedded_serves_proxy_and_engine_and_reuses_their_prefix(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    monkeypatch.setenv("RAGBOOST_ENGINE__MODEL", "ragboost-tiny")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process, url = start("--embedded")
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    documents = [{"id": i, "text": f"Document {i} says that {i} is a number. " * 6} for i in (1, 2)]
    cached = []
    for order in (documents, documents[::-1]):
        body = {**CHAT, "model": model, "max_tokens": 2, "ragboost": {"documents": order}}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] > cached[0]
    ready = httpx.get(f"{url}/ready").json()
    (stream,) = ready.pop("kv_events").values()
    assert (ready, stream["state"]) == ({"status": "ready"}, "exact")
    endless = {**CHAT, "model": model, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=endless) as answer:
        next(answer.iter_raw())
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_process_that_is_told_to_stop_as_soon_as_it_listens_ends_without_error(
    start: Start, engine: FakeEngine
) -> None:
    process, _ = start("--backend", engine.url)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_signal_before_the_server_handles_signals_stops_it(unused_port: int) -> None:
    settings = Settings(proxy=ProxySettings(port=unused_port))
    server = make_server(create_app(settings), settings.proxy)
    with _signals_only_stop(server):
        signal.raise_signal(signal.SIGTERM)
        server.run(sockets=[listen(settings.proxy)])
    assert server.should_exit
