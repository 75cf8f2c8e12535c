"""What one team's requests have cached shows in nothing that another team's key can read."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from ragboost.config import ProxySettings
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

DOCUMENTS = [
    {"id": f"secret-{at}", "text": f"Document {at}. " + f"Fact {at} of many. " * 40}
    for at in range(3)
]
Start = Callable[..., ProxyServer]
A, B1, B2 = ({"authorization": f"Bearer {key}"} for key in ("a", "b1", "b2"))


def ask(
    proxy: ProxyServer, key: Mapping[str, str], *, documents: list[dict[str, Any]] = DOCUMENTS
) -> httpx.Response:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "why?"}],
        "ragboost": {"documents": documents},
    }
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=key)
    assert answer.status_code == 200
    return answer


def predicted(answer: httpx.Response) -> int:
    return int(answer.headers["x-ragboost-cached-tokens-predicted"])


def shown(proxy: ProxyServer, key: Mapping[str, str]) -> str:
    return httpx.get(f"{proxy.url}/dashboard/data", headers=key).text


def test_another_teams_key_learns_nothing_of_what_is_cached(
    start_proxy: Start, engine: FakeEngine
) -> None:
    proxy = start_proxy(proxy={"api_keys": ["a", ["b1", "b2"]]})
    assert predicted(ask(proxy, A)) == 0
    assert predicted(ask(proxy, B1)) == 0  # as for documents that nobody has sent
    assert predicted(ask(proxy, A)) > 100
    assert predicted(ask(proxy, B2)) > 100  # its team's


def test_a_known_prefix_of_another_team_does_not_change_the_order(
    start_proxy: Start, engine: FakeEngine
) -> None:
    proxy = start_proxy(proxy={"api_keys": ["a", "b1"]})
    ask(proxy, A, documents=DOCUMENTS[::-1])
    ask(proxy, B1)
    content = engine.requests[-1].json["messages"][0]["content"]
    assert content.index("Document 0") < content.index("Document 1") < content.index("Document 2")


def test_the_dashboard_shows_documents_to_their_team_only(
    start_proxy: Start, engine: FakeEngine
) -> None:
    proxy = start_proxy(proxy={"api_keys": ["a", ["b1", "b2"]]})
    ask(proxy, B1)
    eventually(lambda: shown(proxy, B2).count("secret-0") >= 2)  # of the index, of the request
    assert "secret-" not in shown(proxy, A)
    ask(proxy, A, documents=DOCUMENTS[:1])
    eventually(lambda: "secret-0" in shown(proxy, A))
    assert "secret-1" not in shown(proxy, A)


@pytest.mark.parametrize("keys", [["a"], [["a", "b1", "b2"]], []])
def test_keys_of_one_team_share_what_is_cached(
    start_proxy: Start, engine: FakeEngine, keys: list[Any]
) -> None:
    proxy = start_proxy(proxy={"api_keys": keys})
    ask(proxy, A)
    assert predicted(ask(proxy, A if keys == ["a"] else B1)) > 100


def test_each_key_of_a_team_is_accepted_and_no_other(start_proxy: Start) -> None:
    proxy = start_proxy(proxy={"api_keys": [["a", "b1"]]})
    headers = [A, B1, B2, {"x-api-key": "b1"}]
    answers = [httpx.get(f"{proxy.url}/v1/models", headers=each) for each in headers]
    assert [answer.status_code for answer in answers] == [200, 200, 401, 200]


def test_a_team_without_keys_is_refused() -> None:
    with pytest.raises(ValidationError):
        ProxySettings(api_keys=([],))  # type: ignore[arg-type]


def test_settings_hide_the_keys_of_teams() -> None:
    settings = ProxySettings(api_keys=["secret-a", ["secret-b"]])  # type: ignore[arg-type]
    assert "secret-" not in f"{settings!r} {settings}"


def test_backends_are_told_the_team_whose_stored_chunks_a_request_may_share(
    start_proxy: Start, engine: FakeEngine
) -> None:
    def told(keys: list[str | list[str]], key: Mapping[str, str]) -> str | None:
        proxy = start_proxy(proxy={"api_keys": keys}, backend={"reuse_chunks": True})
        ask(proxy, key)
        name: str | None = engine.requests[-1].json["ragboost"].get("tenant")
        return name

    names = [told(["a", ["b1", "b2"]], key) for key in (A, B1, B2)]

    assert names[0] != names[1] == names[2]
    assert told([["b1", "b2"], "a"], A) == names[0]  # wherever it is in the list
    assert told([["a", "b1"]], A) is None
