"""Requests reach the engine with the priority of their key's team."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from ragboost.config import Settings, load_settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric

Start = Callable[..., ProxyServer]
CHAT = '{"model": "m", "messages": [{"role": "user", "content": "why?"}]%s}'
DOCUMENTS = ', "ragboost": {"documents": [{"text": "A fact."}]}'
DEEP = "[" * 200 + "]" * 200


@pytest.fixture
def proxy(start_proxy: Start, tmp_path: Path) -> ProxyServer:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"nightly": ["n1", "n2"], "urgent": ["u"], "other": ["o"]}))
    return start_proxy(
        proxy={"api_keys_file": path, "priorities": {"nightly": 10, "urgent": -5}},
    )


def post(proxy: ProxyServer, body: str | bytes, *, key: str) -> int:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    url = f"{proxy.url}/v1/chat/completions"
    return httpx.post(url, content=body, headers=headers).status_code


@pytest.mark.parametrize("extra", ["", DOCUMENTS])
@pytest.mark.parametrize(
    ("key", "own", "sent"),
    [
        ("n1", "", 10),
        ("n2", "", 10),
        ("u", "", -5),
        ("o", "", None),
        ("o", "-3", -3),
        ("n1", "-3", 10),
        ("n1", "20", 20),
        ("u", "0", 0),
        ("n1", '"-3"', 10),
        ("n1", "20.5", 10),
        ("n1", "null", 10),
        ("n1", "true", 10),
        ("n1", '20, "priority": -3', 10),
        ("n1", '20, "\\u0070riority": -3', 10),
    ],
)
def test_a_client_may_be_later_than_its_team_not_earlier(
    proxy: ProxyServer, engine: FakeEngine, key: str, own: str, sent: Any, extra: str
) -> None:
    field = f', "priority": {own}' if own else ""
    assert post(proxy, CHAT % (field + extra), key=key) == 200
    received = engine.requests[-1].json
    assert received.get("priority") == sent
    assert received["messages"][-1]["content"].endswith("why?")


def test_completions_that_wait_leave_by_the_priority_of_their_team(
    start_proxy: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"nightly": ["n"], "urgent": ["u"]}))
    proxy = start_proxy(
        backend={"max_concurrency": 1},
        proxy={"api_keys_file": path, "priorities": {"nightly": 10, "urgent": -5}},
    )
    engine.misbehave(hold=True)
    threads = []
    for number, key in enumerate("nnnu"):
        threads.append(
            Thread(
                target=post,
                args=(
                    proxy,
                    CHAT % "",
                ),
                kwargs={"key": key},
            )
        )
        threads[-1].start()
        eventually(lambda: engine.num_active, equals=1)
        eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=number)
    engine.release()
    for thread in threads:
        thread.join()
    sent = [received.json["priority"] for received in engine.completions]
    assert sent == [10, -5, 10, 10]


def test_a_body_without_a_class_keeps_its_bytes(proxy: ProxyServer, engine: FakeEngine) -> None:
    body = CHAT % ',  "priority":  -7'
    assert post(proxy, body, key="o") == 200
    assert engine.requests[-1].body == body.encode()


def test_a_body_that_only_the_engine_can_read_has_no_way_around_the_class(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    body = (CHAT % f', "x": {DEEP}').encode()
    assert post(proxy, body, key="n1") == 400
    assert engine.requests == []
    post(proxy, body, key="o")
    assert len(engine.requests) == 1


def test_a_body_in_another_encoding_has_no_way_around_the_class(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    for body in ((CHAT % "").encode("utf-16"), (CHAT % "").encode("utf-8-sig")):
        assert post(proxy, body, key="n1") == 200
        assert engine.requests[-1].json["priority"] == 10


def test_priorities_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ragboost.toml"
    path.write_text('[proxy]\napi_keys_file = "keys.json"\n[proxy.priorities]\nnightly = 10\n')
    assert load_settings(toml=path).proxy.priorities == {"nightly": 10}


def test_priorities_without_named_teams_are_refused() -> None:
    settings = Settings.model_validate(
        {"proxy": {"api_keys": ["a", "b"], "priorities": {"nightly": 10}}}
    )
    with pytest.raises(ConfigError, match="api_keys_file"):
        create_app(settings)
