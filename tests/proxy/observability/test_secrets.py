"""Nothing that the proxy shows, answers or logs holds the password of a backend's URL."""

import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ragboost.config import Settings, load_settings
from ragboost.errors import ConfigError
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

ROOT = Path(__file__).parents[3]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
BOOSTED = {**CHAT, "ragboost": {"documents": ["one", "two"]}}
PASSWORD = "hunter2"


def with_login(url: str) -> str:
    return url.replace("://", f"://me:{PASSWORD}@") + f"/?token={PASSWORD}"


@pytest.mark.parametrize("is_reachable", [True, False])
@pytest.mark.parametrize("num_backends", [1, 2])
def test_the_password_of_a_backends_url_is_in_no_answer_and_no_log(
    engine: FakeEngine,
    unused_port: int,
    caplog: pytest.LogCaptureFixture,
    num_backends: int,
    is_reachable: bool,
) -> None:
    url = engine.url if is_reachable else f"http://127.0.0.1:{unused_port}"
    others = [f"http://127.0.0.1:{unused_port}/{at}" for at in range(num_backends - 1)]
    settings = proxy_settings(
        with_login(url),
        backends=[{"url": with_login(each)} for each in (url, *others)],  # type: ignore[arg-type]
        proxy={"access_log": True},
    )
    paths = ("/v1/models", "/metrics", "/dashboard/data", "/ready", "/version", "/health")
    with (
        caplog.at_level(logging.DEBUG),
        ProxyServer(settings) as proxy,
        httpx.Client(base_url=proxy.url) as client,
    ):
        answers = [client.post("/v1/chat/completions", json=body) for body in (CHAT, BOOSTED)]
        answers += [client.get(path) for path in paths]
    assert answers[1].status_code == (200 if is_reachable else 502)
    assert url.removeprefix("http://") in answers[3].text  # it is named in the metrics
    shown = [f"{answer.headers}\n{answer.text}" for answer in answers]
    assert PASSWORD not in "\n".join([*shown, caplog.text, repr(settings), str(settings)])


def test_the_password_of_a_backends_url_is_in_no_line_of_serve_and_doctor(
    engine: FakeEngine, unused_port: int
) -> None:
    command = [sys.executable, "-m", "ragboost"]
    for url in (engine.url, f"http://127.0.0.1:{unused_port}"):
        asked = [*command, "doctor", "--backend", with_login(url)]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
        assert url in done.stdout
        assert PASSWORD not in done.stdout + done.stderr
    served = [*command, "serve", "--port", "0", "--backend", with_login(engine.url)]
    with subprocess.Popen(served, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"listening on (\S+), backend (\S+)", line):
                assert found[2] == engine.url
                assert httpx.get(found[1] + "/ready").status_code == 200
                break
        process.send_signal(signal.SIGTERM)
        lines += process.stderr.readlines()
    assert process.returncode == 0
    assert PASSWORD not in "".join(lines)


@pytest.mark.parametrize(
    "url", ["ftp://me:{}@host", "http://me:{}/x@host:1", "http://me:{}@", "http://[me:{}@x"]
)
def test_the_message_about_a_malformed_url_does_not_quote_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"backend\.url: must be a URL") as caught:
        load_settings({"backend.url": url.format(PASSWORD)})
    assert PASSWORD not in str(caught.value)
    with pytest.raises(ValueError, match="must be a URL") as raw:
        Settings(backend={"url": url.format(PASSWORD)})
    assert PASSWORD not in str(raw.value)
