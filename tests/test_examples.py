"""Every example runs as documented and prints what is expected.

Those that need a server are given `ragboost serve --embedded` or `ragboost engine`, as their first
lines say.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from scripts.ports import free_port
from tests.environments import ENGINE_PYTHON, needs, own_environment
from tests.eventually import SERVER_START_S, eventually

ROOT = Path(__file__).parents[1]
STANDALONE = {  # expected output; these need no server, or start their own
    "quickstart.py": "cached prefix of the second request",
    "openai_client.py": "cached",
    "agents.py": "5 of 5 documents returned",
    "graph_rag.py": "prompt tokens, 67 of them reused",
}
THROUGH_PROXY = {  # required packages, and expected output
    "hosted_usage.py": (["openai"], "UsageTotals(requests=3"),
    "langchain_rag.py": (["langchain_openai"], "928 cached"),
    "llama_index_chat.py": (["llama_index.llms.openai_like"], "sent []"),
    "session_api.py": (["openai"], "3 retrieved, 1 sent"),
}
TO_ENGINE = {
    "batch.py": (["openai"], "planned: q1 q3 q5 q2 q4 q6, 2528 of 3607"),
    # 624 tokens cached; the prompt's length depends on the model's first answer.
    "chat_session.py": (["openai"], "sent ['rooms'], 6"),
    "eval_order.py": ([], "3 of 3 questions answered in every arm"),
    "litellm_proxy.py": (["litellm"], "960 cached"),
}
IN_OWN_ENVIRONMENT = {"llama_index_chat.py", "litellm_proxy.py"}
WITH_RAY = {"ray_batch.py", "ray_serve.py"}  # run by integrations/test_ray.py
ENV = {
    "PYTHONPATH": str(ROOT),
    "PATH": os.environ.get("PATH", ""),
    "OMP_NUM_THREADS": "1",
    "RAGBOOST_ENGINE__MODEL": "ragboost-tiny",
    "RAGBOOST_ENGINE__SERVED_MODEL_NAME": "ragboost-small",
}


@pytest.fixture(scope="module")
def proxy_url() -> Iterator[str]:
    """Base URL of the proxy in front of the embedded engine."""
    with running("serve", "--embedded") as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    """Base URL of the embedded engine."""
    with running("engine") as url:
        yield f"{url}/v1"


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """Start a server from the command line."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [ENGINE_PYTHON, "-m", "ragboost", *arguments, "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env=ENV, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_until_ready(url, server)
            yield url
        finally:
            server.terminate()


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    def is_ready() -> bool:
        if server.poll() is None:
            urlopen(f"{url}/health").close()
        return True

    eventually(is_ready, ignoring=(URLError,), within_s=SERVER_START_S)
    assert server.poll() is None, "the server exited"


def run_example(name: str, *arguments: str, env: Mapping[str, str] = MappingProxyType({})) -> str:
    done = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        env={**ENV, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def marked(names: Iterable[str]) -> list[Any]:
    return [
        pytest.param(name, marks=own_environment if name in IN_OWN_ENVIRONMENT else ())
        for name in names
    ]


def test_every_example_is_run_here() -> None:
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}

    assert examples == {*STANDALONE, *THROUGH_PROXY, *TO_ENGINE, *WITH_RAY}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_an_example_says_how_it_is_run_and_what_it_needs(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    name, is_through_proxy = path.name, path.name in {*THROUGH_PROXY, "ray_batch.py"}
    assert f"python examples/{name}" in text
    if name not in STANDALONE:
        assert ("ragboost serve --embedded" if is_through_proxy else "ragboost engine &") in text


@pytest.mark.skipif(find_spec("torch") is None, reason="some start the embedded engine")
@pytest.mark.parametrize("name", STANDALONE)
def test_the_example_runs(name: str) -> None:
    assert STANDALONE[name] in run_example(name)


@pytest.mark.parametrize("name", marked({**THROUGH_PROXY, **TO_ENGINE}))
def test_the_example_runs_with_a_server(name: str, request: pytest.FixtureRequest) -> None:
    packages, expected = {**THROUGH_PROXY, **TO_ENGINE}[name]
    for package in packages:
        needs(package)

    server = "engine_url" if name in TO_ENGINE else "proxy_url"
    assert expected in run_example(name, request.getfixturevalue(server))


@pytest.mark.parametrize("name", ["batch.py", "chat_session.py", "session_api.py"])
def test_an_example_without_its_server_says_what_to_start(name: str) -> None:
    pytest.importorskip("openai")
    url = f"http://127.0.0.1:{free_port()}/v1"
    command = [sys.executable, str(ROOT / "examples" / name), url]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"No server at {url}: start `ragboost ")
    assert done.stderr.count("\n") == 1
