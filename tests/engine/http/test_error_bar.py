"""Answers that reused chunks are scored exactly by the embedded engine, through the proxy."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ragboost.chunk_cache.http.answer_scores import CHECK
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.errors import ConfigError
from ragboost.proxy.quality import error_bar
from ragboost.proxy.serving import serve_in_thread
from tests.eventually import eventually
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

CHAT = "/v1/chat/completions"
_WORDS = "ant bee cat dog elk fox gnu hen jay koi lynx mole newt owl pig ram".split()  # noqa: SIM905
_RNG = random.Random(5)
DOCUMENTS = [
    {"id": f"d{n}", "text": f"Report {n}: " + " ".join(_RNG.choices(_WORDS, k=40))}
    for n in range(8)
]
# The exact request has the prompt of the one that reused chunks.
PLAIN = {
    "ordering": {"enabled": False},
    "dedup": {"enabled": False},
    "hints": {"order": False, "location": False},
}


class Gate:
    """An engine of which a test may hold completions, and answer or break the checks."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.reset()

    def reset(self) -> None:
        engine = self._app.state.engine
        if engine.is_healthy:
            engine.chunk_filler.reuse.store.clear()
            engine.reset_prefix_cache().result()
        self.check: Any = None  # the answer to checks: a status, bytes or a function; None: real
        self.holds = b""  # requests with these bytes wait for `released`
        self.released = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.log: list[str] = []
        self.keys: list[bytes | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        is_read = False

        async def replay() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        if scope["path"] == CHECK:
            self.log.append("check")
            self.keys.append(dict(scope["headers"]).get(b"authorization"))
            if self.check is not None:
                await self._answer(send, json.loads(body))
                return
        else:
            self.bodies.append(json.loads(body))
            if self.holds and self.holds in body:
                self.log.append("held")
                await asyncio.to_thread(self.released.wait)
                self.log.append("released")
        await self._app(scope, replay, send)

    async def _answer(self, send: Any, body: dict[str, Any]) -> None:
        answer: Any = self.check
        status = answer if isinstance(answer, int) else 200
        if isinstance(answer, int):
            answer = b""
        elif callable(answer):
            answer = json.dumps(answer(body)).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Gate, str]]:
    gate = Gate(
        create_engine_app(EngineSettings(model="ragboost-tiny", chunks={"reuse": "approx"}))
    )
    with serve_in_thread(gate) as url:
        yield gate, url


@pytest.fixture
def gate(served: tuple[Gate, str]) -> Iterator[Gate]:
    served[0].reset()
    yield served[0]
    served[0].released.set()


class Asked:
    """A proxy in front of the engine, and what it says of its checks."""

    def __init__(self, proxy: ProxyServer) -> None:
        self._proxy = proxy
        self.bar = proxy.app.state.error_bar
        self.num = 0
        eventually(lambda: proxy.app.state.engines.is_supported)

    def ask(self, documents: list[int], **fields: Any) -> dict[str, Any]:
        self.num += 1
        ours = {"documents": [DOCUMENTS[n] for n in documents], **fields.pop("ragboost", {})}
        body = {
            "messages": [{"role": "user", "content": f"Which animal? {self.num}"}],
            "max_tokens": 5,
            "temperature": 0,
            "ragboost": ours,
            **fields,
        }
        answer = httpx.post(
            self._proxy.url + CHAT, json=body, headers={"authorization": "Bearer k"}
        )
        assert answer.status_code == 200, answer.text
        return {} if fields.get("stream") else answer.json()

    def settle(self, num: int) -> None:
        """Wait until so many answers have been checked, or cannot be."""
        eventually(lambda: self.checked + self.unchecked() == num)

    def quality(self) -> dict[str, Any]:
        (route,) = httpx.get(self._proxy.url + "/dashboard/data").json()["reuse_checks"]
        return dict(route)

    @property
    def checked(self) -> int:
        return int(read_metric(self._proxy.url, "ragboost_reuse_checked_total"))

    def unchecked(self, **labels: str) -> int:
        return int(read_metric(self._proxy.url, "ragboost_reuse_unchecked_total", **labels))

    def metric(self, name: str) -> float:
        return read_metric(self._proxy.url, name)


@pytest.fixture
def asked(gate: Gate, served: tuple[Gate, str], request: pytest.FixtureRequest) -> Iterator[Asked]:
    reuse = {"check": 1.0, **getattr(request, "param", {})}
    with ProxyServer(proxy_settings(served[1], reuse=reuse, **PLAIN)) as proxy:
        yield Asked(proxy)


def scores(body: dict[str, Any], *, gap: float) -> dict[str, Any]:
    num = body["completion_tokens"]
    return {
        "logprobs": [-1.0] * num,
        "best": [-1.0 + gap] * num,
        "is_end": True,
        "computed_tokens": 9,
    }


def reused(answer: dict[str, Any]) -> int:
    return int(answer["usage"].get("ragboost", {}).get("reused", 0))


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_the_estimate_is_what_exact_answers_say(asked: Asked) -> None:
    rng, differing, num_reusing = random.Random(2), 0, 0
    for _ in range(16):
        documents = rng.sample(range(8), 3)
        answer = asked.ask(documents)
        asked.num -= 1  # the same question
        exact = asked.ask(documents, ragboost={"reuse": "exact"})
        num_reusing += reused(answer) > 0
        differing += reused(answer) > 0 and text(answer) != text(exact)
    asked.settle(num_reusing)
    quality, unknown = asked.quality(), asked.unchecked(reason="other_tokens")

    assert num_reusing > 8
    assert 0 < quality["checked"] == num_reusing - unknown
    assert quality["changed"] <= differing <= quality["changed"] + unknown
    assert quality["low"] <= quality["share"] <= quality["high"]
    assert asked.metric("ragboost_reuse_check_tokens_total") > 0
    assert asked.metric("ragboost_reuse_check_seconds_total") > 0


def test_a_stream_is_checked_like_a_whole_answer(asked: Asked) -> None:
    asked.ask([0, 1, 2])
    asked.settle(0)
    for order in ([2, 1, 0], [1, 2, 0], [0, 2, 1]):
        asked.ask(order, stream=True)

    asked.settle(3)
    assert asked.checked + asked.unchecked(reason="other_tokens") == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temperature": 0.7}, "sampled"),
        ({"temperature": None}, "sampled"),
        ({"stop": ["ram"], "ignore_eos": True}, None),
    ],
)
def test_an_answer_that_is_no_greedy_one_is_not_checked(
    asked: Asked, gate: Gate, fields: dict[str, Any], reason: str | None
) -> None:
    gate.check = lambda body: scores(body, gap=0.0)
    asked.ask([3, 4, 5])
    asked.settle(asked.unchecked())
    asked.ask([5, 4, 3], **fields)

    eventually(lambda: asked.checked + asked.unchecked() > 0)
    if reason is not None:
        assert asked.unchecked(reason=reason)
        assert not asked.checked


def test_an_exact_request_is_not_checked(asked: Asked, gate: Gate) -> None:
    for order in ([0, 1, 2], [2, 1, 0]):
        asked.ask(order, ragboost={"reuse": "exact"})

    assert asked.bar.num_waiting == 0
    assert "check" not in gate.log


@pytest.mark.parametrize("answer", [500, 404, b"", b"[]", b'{"logprobs": [], "best": []}'])
def test_a_check_that_fails_is_counted_and_harms_nobody(
    asked: Asked, gate: Gate, answer: Any
) -> None:
    gate.check = answer
    asked.ask([0, 1, 2])
    asked.ask([1, 0, 2])
    asked.ask([2, 0, 1])

    eventually(lambda: asked.unchecked(reason="failed") >= 2)
    assert asked.checked == 0


def test_a_check_waits_until_the_backend_has_no_request(asked: Asked, gate: Gate) -> None:
    asked.ask([0, 1, 2], temperature=1)
    gate.holds = b"HOLD"
    held = threading.Thread(target=lambda: asked.ask([3], messages=[_message("HOLD")]))
    held.start()
    eventually(lambda: "held" in gate.log)
    asked.ask([2, 1, 0])
    eventually(lambda: asked.bar.num_waiting == 1)
    gate.released.set()
    held.join()

    eventually(lambda: "check" in gate.log)
    assert gate.log.index("released") < gate.log.index("check")


def test_few_checks_wait_at_a_time(
    asked: Asked, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_bar, "_MAX_WAITING", 2)
    asked.ask([0, 1, 2], temperature=1)
    gate.holds = b"HOLD"
    held = threading.Thread(target=lambda: asked.ask([3], messages=[_message("HOLD")]))
    held.start()
    eventually(lambda: "held" in gate.log)
    for order in ([2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1]):
        asked.ask(order)

    eventually(lambda: asked.unchecked(reason="busy") == 2)
    assert asked.bar.num_waiting == 2
    gate.released.set()
    held.join()


def test_a_check_has_the_credentials_of_its_request(asked: Asked, gate: Gate) -> None:
    asked.ask([0, 1, 2])
    asked.ask([2, 1, 0])

    eventually(lambda: gate.keys)
    assert set(gate.keys) == {b"Bearer k"}


@pytest.mark.parametrize("asked", [{"max_changed": 0.02}], indirect=True)
def test_over_the_budget_answers_become_exact(asked: Asked, gate: Gate) -> None:
    gate.check = lambda body: scores(body, gap=0.5)
    asked.ask([0, 1, 2])

    def is_exact() -> bool:
        asked.ask(random.sample(range(8), 3))
        return asked.quality()["ratio"] is None

    assert asked.quality()["ratio"] == 0.15
    eventually(is_exact)
    assert asked.metric("ragboost_reuse_ratio") == 1.0
    ratios = [body["ragboost"]["reuse"] for body in gate.bodies]
    assert ratios.index({"ratio": 0.15}) < ratios.index({"ratio": 0.3}) < len(ratios)
    asked.ask([0, 1, 2])
    assert gate.bodies[-1]["ragboost"]["reuse"] in ("exact", {"ratio": 0.5})  # one in 50 probes


@pytest.mark.parametrize("asked", [{"max_changed": 0.02}], indirect=True)
def test_a_request_may_ask_for_more_recomputing_than_the_budget_needs(
    asked: Asked, gate: Gate
) -> None:
    asked.ask([0, 1, 2], ragboost={"reuse": {"policy": "epic", "ratio": 0.8}})

    assert gate.bodies[-1]["ragboost"]["reuse"] == {"policy": "epic", "ratio": 0.8}


@pytest.mark.parametrize("asked", [{"max_changed": 0.5}], indirect=True)
def test_a_document_that_keeps_failing_is_not_reused(asked: Asked, gate: Gate) -> None:
    gate.check = lambda body: scores(body, gap=float("Report 7" in json.dumps(body)))
    asked.ask(list(range(8)))
    for _ in range(12):
        asked.ask([1, 7, 0])
        for order in ([2, 1, 0], [1, 2, 0]):
            asked.ask(order)
        eventually(lambda: asked.bar.num_waiting == 0)
    asked.ask([1, 7, 0])

    chunks = {len(body["ragboost"]["chunks"]) for body in gate.bodies[-3:-1]}
    assert chunks == {3}
    assert len(gate.bodies[-1]["ragboost"]["chunks"]) == 2


def test_a_budget_needs_checks(served: tuple[Gate, str]) -> None:
    with pytest.raises(ConfigError, match=r"set reuse\.check"):
        ProxyServer(proxy_settings(served[1], reuse={"max_changed": 0.02}))


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_the_engine_scores_its_own_greedy_answer_as_such(
    gate: Gate, served: tuple[Gate, str], max_tokens: int
) -> None:
    message = _message(" ".join(_RNG.choices(_WORDS, k=150)))
    body = {"messages": [message], "max_tokens": max_tokens, "temperature": 0}
    answer = httpx.post(served[1] + CHAT, json=body).json()
    given = {
        "request": {**body, "ragboost": {"reuse": "approx", "chunks": [[0, 0, 90]]}},
        "answer": text(answer),
        "prompt_tokens": answer["usage"]["prompt_tokens"],
        "completion_tokens": answer["usage"]["completion_tokens"],
    }
    right = httpx.post(served[1] + CHECK, json=given).json()
    wrong = httpx.post(served[1] + CHECK, json={**given, "answer": " ram" * max_tokens})
    other = httpx.post(served[1] + CHECK, json={**given, "prompt_tokens": 3})

    assert right["logprobs"] == right["best"]
    assert right["computed_tokens"] < given["prompt_tokens"]  # the prompt's KV is cached
    assert wrong.status_code == 409 or wrong.json()["logprobs"] != wrong.json()["best"]
    assert other.status_code == 409


def _message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
