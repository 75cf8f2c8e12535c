"""Every example runs as a user would run it, and says what it promises.

Those that need a proxy are given `ragboost serve --embedded`, as their first lines say.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[1]
SAYS = {
    "quickstart.py": "cached prefix of the second request",
    "chat_session.py": "sent ['5']",
    "openai_client.py": "cached",
    "batch.py": "q0",
    "agents.py": "5 of 5 documents went back",
    "graph_rag.py": "prompt tokens, 67 of them reused",
}
THROUGH_PROXY = {  # the packages it needs, and what it says
    "hosted_usage.py": ({"openai"}, "Usage(requests=3"),
    "langchain_rag.py": ({"langchain_openai"}, "928 cached"),
    "llama_index_chat.py": ({"llama_index.core", "llama_index.llms.openai_like"}, "sent []"),
    "ray_batch.py": ({"ray", "openai"}, "row 5:"),
    "session_api.py": ({"openai"}, "3 retrieved, 1 sent"),
}
ENV = {
    "PYTHONPATH": str(ROOT),
    "PATH": os.environ.get("PATH", ""),
    "OMP_NUM_THREADS": "1",
    "RAGBOOST_ENGINE__BUILTIN_SIZE": "tiny",
    "RAGBOOST_ENGINE__SERVED_MODEL_NAME": "ragboost-small",
}
# In an environment without torch, the Makefile says which Python has it.
ENGINE_PYTHON = os.environ.get("EMBEDDED_ENGINE_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def proxy_url() -> Iterator[str]:
    """The proxy in front of the embedded engine."""
    with running("serve", "--embedded") as url:
        yield f"{url}/v1"


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """A server, started from the command line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [ENGINE_PYTHON, "-m", "ragboost", *arguments, "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env=ENV, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_until_ready(url, server)
            yield url
        finally:
            server.terminate()


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 100
    while True:
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server does not get ready"
        try:
            with urlopen(f"{url}/health"):
                return
        except URLError:
            time.sleep(0.2)


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def run_example(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}

    assert examples == {*SAYS, *THROUGH_PROXY, "ray_serve.py"}


@pytest.mark.skipif(find_spec("torch") is None, reason="some start the embedded engine themselves")
@pytest.mark.parametrize("name", SAYS)
def test_the_example_runs(name: str) -> None:
    assert SAYS[name] in run_example(name)


@pytest.mark.parametrize("name", THROUGH_PROXY)
def test_the_example_runs_through_the_proxy(name: str, proxy_url: str) -> None:
    needs, says = THROUGH_PROXY[name]
    for package in sorted(needs):
        if not is_installed(package):
            pytest.skip(f"{package} is not installed here; make test-integrations has it")

    assert says in run_example(name, proxy_url)


def test_the_ray_serve_example_runs_in_front_of_the_engine() -> None:
    if not is_installed("ray"):
        pytest.skip("ray is not installed here; make test-integrations has it")
    with running("engine") as url:
        assert "What is the rent?" in run_example("ray_serve.py", url)
