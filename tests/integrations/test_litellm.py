"""The hook inside a LiteLLM proxy, which runs as users run it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.environments import needs, own_environment

# Without it, importing litellm asks the network for prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
needs("litellm")  # which needs huggingface-hub below 2

import httpx

from ragboost.integrations.litellm import BoostHook
from ragboost.integrations.litellm.hook import RefusedError
from scripts.ports import free_port
from tests.eventually import SERVER_START_S, eventually
from tests.fakes import FakeEngine
from tests.integrations.corpus import FIRST, SECOND, TEXTS, num_copies, words

pytestmark = own_environment
ROOT = Path(__file__).parents[2]
KEY = "sk-0123456789abcdef0123456789abcdef"
HEADERS = {"authorization": f"Bearer {KEY}"}


def documents(names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"id": name, "text": TEXTS[name]} for name in names]


def request(question: str, names: tuple[str, ...], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {
        "model": "m",
        "messages": messages,
        "ragboost": {"documents": documents(names)},
    } | fields


async def boosted(hook: BoostHook, data: dict[str, Any], call_type: str = "acompletion") -> Any:
    return await hook.async_pre_call_hook(None, None, data, call_type)


async def test_documents_are_put_into_the_order_of_the_cached_prefix() -> None:
    hook = BoostHook()
    await boosted(hook, request("Who?", FIRST))
    log = object()

    data = await boosted(hook, request("When?", SECOND, litellm_logging_obj=log, temperature=0.5))

    assert words(data["messages"][-1]["content"]) == ["lease", "pets", "parking"]
    assert "ragboost" not in data
    assert (data["litellm_logging_obj"], data["temperature"]) == (log, 0.5)


async def test_a_named_conversation_sends_documents_once() -> None:
    hook = BoostHook()
    server = {"headers": {"X-LiteLLM-Session-Id": "user-42"}}
    first = await boosted(hook, request("Who?", FIRST, proxy_server_request=server))
    answer = {"role": "assistant", "content": "Ada."}
    again = request("When?", SECOND, proxy_server_request=server)
    again["messages"] = [{"role": "user", "content": "Who?"}, answer, *again["messages"]]

    second = await boosted(hook, again)

    assert second["messages"][:2] == [*first["messages"], answer]
    assert words(second["messages"][-1]["content"]) == ["parking"]


async def test_other_calls_and_requests_without_documents_stay() -> None:
    hook = BoostHook()
    plain = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "user": "u"}
    embedding = {"model": "m", "input": ["a", "b"]}

    assert await boosted(hook, plain) == plain
    assert await boosted(hook, embedding, "aembedding") is embedding


async def test_a_malformed_object_is_the_clients_error() -> None:
    with pytest.raises(RefusedError) as error:
        await boosted(BoostHook(), request("Who?", FIRST, ragboost={"documents": "no"}))

    assert error.value.status_code == 400
    assert error.value.param == "ragboost.documents"


@pytest.fixture
def litellm_url(engine: FakeEngine, tmp_path: Path) -> Iterator[str]:
    """A LiteLLM proxy in front of the FakeEngine."""
    model = {"model": "openai/fake-model", "api_base": f"{engine.url}/v1", "api_key": "unused"}
    config = {
        "model_list": [{"model_name": "m", "litellm_params": model}],
        "litellm_settings": {"callbacks": ["ragboost.integrations.litellm.proxy_handler_instance"]},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    port = free_port()
    code = "from litellm import run_server; run_server()"
    command = [sys.executable, "-c", code, "--config", str(tmp_path / "config.yaml")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env |= {"LITELLM_TELEMETRY": "False", "NO_PROXY": "*", "LITELLM_MASTER_KEY": KEY}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log) as server,
    ):
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}", server, tmp_path / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    def is_ready() -> bool:
        return server.poll() is not None or httpx.get(f"{url}/health/liveliness").status_code == 200

    eventually(is_ready, ignoring=(httpx.TransportError,), within_s=SERVER_START_S)
    assert server.poll() is None, log.read_text()


def test_the_litellm_proxy_boosts_its_requests(engine: FakeEngine, litellm_url: str) -> None:
    for question, names in (("Who?", FIRST), ("When?", SECOND)):
        answer = httpx.post(
            f"{litellm_url}/v1/chat/completions",
            json=request(question, names),
            headers=HEADERS,
        )
        assert answer.status_code == 200, answer.text
    bad = httpx.post(
        f"{litellm_url}/v1/chat/completions",
        json=request("Who?", FIRST, ragboost={"documents": "no"}),
        headers=HEADERS,
    )

    sent = engine.completions[-1]
    assert num_copies(sent.prompt) == dict.fromkeys(("lease", "pets", "parking"), 1)
    assert words(sent.prompt) == ["lease", "pets", "parking"]
    assert sent.cached_tokens > 100
    assert bad.status_code == 400
    assert "ragboost.documents" in bad.text
