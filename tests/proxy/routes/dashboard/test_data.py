"""The figures behind the page, over HTTP."""

import asyncio
import re

import httpx
import pytest

from ragboost.index import ContextIndex
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.recent_requests import RecentRequests
from ragboost.proxy.routes.dashboard.figures import TotalsHistory, read_samples, read_ttft
from ragboost.proxy.routes.dashboard.routes import hot_prefixes
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

TEXTS = {name: f"The {name} document speaks of {name} at some length. " * 8 for name in "abcd"}


def ask(url: str, names: str, *, fails: bool = False, **fields: object) -> httpx.Response:
    documents = [{"id": name, "text": TEXTS[name]} for name in names]
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "A secret question?"}],
        "ragboost": {"documents": documents},
        **fields,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    return answer if fails else answer.raise_for_status()


def test_the_data_shows_orders_indexes_and_backends_but_no_text(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    ask(proxy.url, "abc")
    ask(proxy.url, "cab")
    httpx.post(f"{proxy.url}/v1/chat/completions", json={"model": "m", "messages": []})

    answer = httpx.get(f"{proxy.url}/dashboard/data")

    data = answer.json()
    assert "secret" not in answer.text
    assert "speaks of" not in answer.text
    plain, second, first = data["recent"]
    assert plain["bypass"] == "no_documents"
    assert first["before"] == first["after"] == ["[Doc_a]", "[Doc_b]", "[Doc_c]"]
    assert second["before"] == ["[Doc_c]", "[Doc_a]", "[Doc_b]"]
    assert second["after"] == first["after"]
    assert second["cached_tokens"] > 0
    assert data["totals"]["requests"] == 3
    assert (data["totals"]["boosted"], data["totals"]["completions"]) == (2, 3)
    # "c" was no first document before: without us the engine would have found no document cached.
    saved = sum(len(TEXTS[name]) / 4 for name in "abc")
    assert data["totals"]["saved_by"]["order"] == pytest.approx(saved, rel=0.02)
    assert data["totals"]["saved_tokens"] == sum(data["totals"]["saved_by"].values())
    assert [reason["reason"] for reason in data["not_boosted"]] == ["no_documents"]
    assert "<document>" in data["not_boosted"][0]["advice"] == plain["advice"]
    assert data["errors"] == data["arms"] == {}
    assert data["totals"]["documents_sent"] == 6
    assert data["ttft"]["count"] == 3
    (backend,) = data["backends"]
    assert backend["name"] == engine.url.removeprefix("http://")
    (index,) = data["indexes"]
    assert index["children"][0]["documents"] == ["[Doc_a]", "[Doc_b]", "[Doc_c]"]
    assert data["history"]["prompt_tokens"][-1] == data["totals"]["prompt_tokens"] > 0


def test_errors_are_counted_by_kind(engine: FakeEngine, proxy: ProxyServer) -> None:
    body = {"model": "m", "messages": []}
    for fault in ({"status": 500}, {"status": 401}, {"status": 429}, {"drop": True}):
        engine.misbehave(**fault)
        httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
    httpx.post(f"{proxy.url}/v1/chat/completions", json={**body, "ragboost": {"documents": 1}})

    data = httpx.get(f"{proxy.url}/dashboard/data").json()

    assert data["errors"] == {
        "backend_4xx": 2, "backend_5xx": 1, "backend_unreachable": 1, "refused": 1
    }  # fmt: skip
    assert data["totals"]["errors"] == sum(data["errors"].values())
    assert data["totals"]["faults"] == 4
    assert [entry["status"] for entry in data["recent"]] == [400, 502, 429, 401, 500]
    refused = data["recent"][0]
    assert refused["bypass"] == "refused"
    assert "ragboost.documents" in refused["why"]
    assert "correct the field" in refused["advice"]


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml", "*/*", None])
def test_the_root_is_the_dashboard_for_browsers_and_says_where_it_is_to_others(
    engine: FakeEngine, proxy: ProxyServer, accept: str | None
) -> None:
    answer = httpx.get(f"{proxy.url}/", headers={"accept": accept} if accept else {})
    assert answer.status_code == 200
    if accept and "html" in accept:
        assert answer.text == httpx.get(f"{proxy.url}/dashboard").text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    else:
        assert answer.json()["clients"] == "/v1"
        assert httpx.get(f"{proxy.url}{answer.json()['dashboard']}").status_code == 200
    assert engine.requests == []


def test_tenants_that_differ_have_names_that_differ_and_hide_their_salt(proxy: ProxyServer) -> None:
    for salt in ("", "hidden-1", "hidden-2"):
        ask(proxy.url, "ab", **({"cache_salt": salt} if salt else {}))

    answer = httpx.get(f"{proxy.url}/dashboard/data")

    names = {(index["model"], index["salt"]) for index in answer.json()["indexes"]}
    assert len(names) == 3
    assert "hidden" not in answer.text


def test_a_prefix_behind_a_system_prompt_has_the_labels_of_its_documents(
    proxy: ProxyServer,
) -> None:
    system = {"role": "system", "content": "Be brief."}
    ask(proxy.url, "aba", messages=[system, {"role": "user", "content": "why?"}])
    (index,) = httpx.get(f"{proxy.url}/dashboard/data").json()["indexes"]
    (prefix,) = index["children"]
    assert prefix["documents"] == ["[Doc_a]", "[Doc_b]"]
    assert re.fullmatch("#[0-9a-f]{6}", prefix["name"])


def test_with_api_keys_the_data_wants_one_and_the_page_does_not() -> None:
    with (
        FakeEngine() as engine,
        ProxyServer(proxy_settings(engine.url, proxy={"api_keys": ["right"]})) as proxy,
    ):
        assert httpx.get(f"{proxy.url}/dashboard").status_code == 200
        assert httpx.get(f"{proxy.url}/dashboard/data").status_code == 401
        headers = {"authorization": "Bearer right"}
        assert httpx.get(f"{proxy.url}/dashboard/data", headers=headers).status_code == 200


def test_the_page_names_no_other_server(proxy: ProxyServer) -> None:
    answer = httpx.get(f"{proxy.url}/dashboard")

    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    addresses = answer.text.replace("http://www.w3.org/2000/svg", "")  # a name, never fetched
    assert "http" not in addresses
    assert "//" not in addresses.replace("// ", "")


def test_the_tree_is_cut_in_width_depth_and_documents() -> None:
    index = ContextIndex()
    for first in range(30):
        index.insert([f"{first}-{i}" for i in range(40)], [10] * 40)
    chain = [f"x{i}" for i in range(9)]
    for end in range(1, 10):
        index.insert([*chain[:end], f"y{end}"], [10] * (end + 1))

    children = hot_prefixes(index, RecentRequests())

    assert len(children) == 8
    assert all(len(child["documents"]) <= 12 for child in children)
    assert children[0]["age"] <= children[-1]["age"]
    depth, level = 0, children
    while level:
        depth, level = depth + 1, level[0]["children"]
    assert depth == 4


@pytest.mark.parametrize(
    ("seconds", "median_ms"),
    [([], None), ([0.02] * 4, 17.5), ([0.005] * 2 + [0.2] * 2, 10.0), ([10_000.0], 600_000.0)],
)
def test_percentiles_are_interpolated_in_the_buckets(
    seconds: list[float], median_ms: float | None
) -> None:
    metrics = Metrics()
    for value in seconds:
        metrics._ttft.labels("chat", "").observe(value)

    ttft = read_ttft(read_samples(metrics.registry.collect()))

    assert ttft["p50_ms"] == pytest.approx(median_ms)
    assert ttft["count"] == len(seconds)


async def test_the_history_samples_while_it_is_open() -> None:
    registry = Metrics().registry
    history = TotalsHistory(registry)

    async with history:
        await asyncio.sleep(0)  # the sampler's first step

    assert len(history.as_json()["time"]) == 2
