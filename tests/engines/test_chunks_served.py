"""Chunk reuse in a real vLLM and a real SGLang, over HTTP and through the proxy."""

import json
import random
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest
from typer.testing import CliRunner

from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.http.precompute import prepare
from ragboost.cli import app as cli
from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from tests.engines.conftest import KINDS, PUBLIC_KEY, require
from tests.engines.servers import EngineServer, Kind
from tests.eventually import eventually
from tests.metrics import read_metric

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

PASSAGES = [
    " ".join(f"Shelf {shelf} holds item {n}, worth {n * n + shelf} coins." for n in range(12))
    for shelf in range(6)
]


def chat(order: list[int], *, reuse: Any = "approx", **more: Any) -> dict[str, Any]:
    text = "\n\n".join(PASSAGES[number] for number in order) + "\n\nWhich is worth most?"
    chunks, at = [], 0
    for number in order:
        at = text.index(PASSAGES[number], at)
        chunks.append([0, at, at + len(PASSAGES[number])])
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "ragboost": {"reuse": reuse, "chunks": chunks},
        **more,
    }


def ask(server: EngineServer, body: dict[str, Any]) -> tuple[str, dict[str, int], int]:
    """Return the answer, the origins of the prompt's tokens and the cached tokens."""
    answer = server.post("/v1/chat/completions", body)
    usage = answer["usage"]
    origins = usage.get("ragboost", {})
    if origins:
        assert sum(origins.values()) == usage["prompt_tokens"]
    cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    return answer["choices"][0]["message"]["content"], origins, cached


def test_the_second_request_reuses_the_documents_of_the_first(server: EngineServer) -> None:
    server.clear_cache()
    ask(server, chat([0, 1, 2, 3]))
    _, origins, cached = ask(server, chat([3, 1, 0, 2]))

    assert origins["reused"] > 600
    assert origins["recomputed"] > 50
    assert origins["exact"] == cached


def test_a_ratio_of_one_answers_as_an_exact_request(server: EngineServer) -> None:
    ask(server, chat([0, 1, 2, 3]))  # what stands at the same place is exact KV
    server.clear_cache()
    order = [2, 0, 3, 1]
    exact, _, _ = ask(server, chat(order, reuse="exact"))
    server.clear_cache()
    whole, origins, _ = ask(server, chat(order, reuse={"ratio": 1.0}))

    assert whole == exact
    assert origins["reused"] == 0
    assert origins["recomputed"] > 300  # 3 and 1; the exact request stored 2 and 0 as they stand


def test_an_exact_request_never_hits_approximate_blocks(server: EngineServer) -> None:
    order = [1, 3, 2, 0]
    ask(server, chat([0, 1, 2, 3]))  # what stands at the same place is exact KV
    server.clear_cache()
    exact, _, _ = ask(server, chat(order, reuse="exact"))
    server.clear_cache()
    ask(server, chat(order, reuse={"policy": "reuse", "ratio": 0.0}))
    again, _, cached = ask(server, chat(order, reuse="exact"))

    assert again == exact
    assert cached < 400  # at most the prefix before the first approximate block


def test_an_answer_is_scored_as_the_exact_model_would(server: EngineServer) -> None:
    order, text = [3, 1, 2, 0], "Shelf 3 holds item 11, worth 124 coins."
    tokenized = {"model": "tiny", "prompt": text, "add_special_tokens": False}
    num = len(server.post("/tokenize", tokenized)["tokens"])
    exact = server.post("/v1/chat/completions", chat(order, reuse="exact", logprobs=True))
    first = exact["choices"][0]["logprobs"]["content"][0]["logprob"]
    given = {
        "request": chat(order, reuse={"policy": "reuse", "ratio": 0.0}),
        "answer": text,
        "prompt_tokens": exact["usage"]["prompt_tokens"],
        "completion_tokens": num,
    }
    server.clear_cache()
    before = server.post("/chunk_reuse/check", given)
    server.clear_cache()
    _, origins, _ = ask(server, given["request"])
    after = server.post("/chunk_reuse/check", given)

    assert origins["reused"] > 400
    assert len(before["logprobs"]) == len(before["best"]) == num
    assert before["best"][0] == pytest.approx(first, abs=1e-3)
    assert all(best >= own for own, best in zip(before["logprobs"], before["best"], strict=True))
    # Approximate blocks are not read.
    assert after["logprobs"] == pytest.approx(before["logprobs"], abs=1e-3)
    assert after["best"] == pytest.approx(before["best"], abs=1e-3)
    assert after["computed_tokens"] > num


def test_a_stream_splits_its_usage(server: EngineServer) -> None:
    ask(server, chat([0, 1, 2, 3]))
    body = chat([2, 3, 1, 0], stream=True, stream_options={"include_usage": True})
    lines = server.post("/v1/chat/completions", body).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    usage = events[-1]["usage"]

    assert usage["ragboost"]["reused"] > 400
    assert sum(usage["ragboost"].values()) == usage["prompt_tokens"]


def test_several_choices_share_one_reuse(server: EngineServer) -> None:
    ask(server, chat([0, 1, 2, 3]))
    # vLLM refuses choices without sampling; SGLang draws among what is nearly as likely.
    temperature = 0.01 if server.kind == "vllm" else 0.0
    body = chat([3, 2, 0, 1], n=2, logprobs=True, temperature=temperature, seed=1)
    answer = server.post("/v1/chat/completions", body)

    texts = {choice["message"]["content"] for choice in answer["choices"]}
    assert len(answer["choices"]) == 2
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ([[0, 5, 4_000_000]], "not_found"),
        ([[3, 0, 500]], "not_found"),
    ],
)
def test_wrong_positions_are_computed_exactly_and_counted(
    server: EngineServer, change: list[list[int]], reason: str
) -> None:
    body = chat([0, 1])
    body["ragboost"]["chunks"] = change
    answer, origins, _ = ask(server, body)

    assert answer
    assert not origins
    assert f'ragboost_chunk_exact_requests_total{{reason="{reason}"}}' in server.get("/metrics")


@pytest.mark.parametrize("policy", ["oracle", "none"])
def test_a_policy_that_is_not_served_harms_nobody(server: EngineServer, policy: str) -> None:
    ask(server, chat([0, 1, 2]))
    with pytest.raises(HTTPError, match="400"):
        ask(server, chat([2, 0, 1], reuse={"policy": policy}))

    if server.kind != "vllm":
        return
    ids = server.post("/tokenize", {"prompt": PASSAGES[0] + PASSAGES[1]})["tokens"]
    plan = {"version": 1, "chunks": [[0, 60], [60, 120]], "policy": policy, "ratio": 0.2}
    body = {
        "model": "tiny",
        "prompt": ids,
        "max_tokens": 1,
        "kv_transfer_params": {"ragboost": plan},
    }
    # A client's own plan does not reach the engine.
    assert server.post("/v1/completions", body)["kv_transfer_params"] is None


def test_precompute_stores_and_measures_a_corpus_for_the_policies_that_need_it(
    server: EngineServer,
) -> None:
    client = ChunkClient(server.url, tenant="measured")
    client.check()
    neighbours = [[(n + 1) % 6, (n + 2) % 6] for n in range(6)]
    server.clear_cache()
    told = prepare(
        client,
        PASSAGES,
        neighbours,
        system=None,
        concurrency=1,
        on_progress=lambda *stage: None,
    )
    assert (told.num_stored, told.num_measured) == (6, 6)
    for policy in ("cachecraft",):
        server.clear_cache()
        body = chat([4, 1, 3, 0], reuse={"policy": policy, "ratio": 0.2})
        body["ragboost"]["tenant"] = "measured"
        _, origins, _ = ask(server, body)
        assert origins["reused"] > 400
        assert origins["recomputed"] > 100
        del body["ragboost"]["tenant"]  # nobody else's chunks were measured
        server.clear_cache()
        ask(server, chat([4, 1, 3, 0]))
        server.clear_cache()
        _, origins, _ = ask(server, body)
        assert origins.get("recomputed", 0) == 0


def test_a_corpus_that_is_stored_is_not_computed_again(server: EngineServer) -> None:
    client = ChunkClient(server.url, tenant="interrupted")
    client.check()
    computed = []
    for _ in range(2):
        server.clear_cache()
        before = read_metric(server.url, "ragboost_chunk_prompt_tokens_total", origin="computed")
        told = prepare(
            client, PASSAGES, [()] * 6, system=None, concurrency=1, on_progress=lambda *_: None
        )
        after = read_metric(server.url, "ragboost_chunk_prompt_tokens_total", origin="computed")
        computed.append((after - before) / told.num_tokens)
    assert computed[0] > 0.8
    assert computed[1] < 0.4


def test_what_precompute_stores_is_reused_by_the_first_request_through_the_proxy(
    server: EngineServer, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    documents = [
        {"id": n, "title": f"Shelf {n}", "text": PASSAGES[n]} for n in range(len(PASSAGES))
    ]
    corpus.write_text("".join(json.dumps(each) + "\n" for each in documents))
    arguments = ["precompute", "--corpus", str(corpus), "--alone", "--engine", server.url]
    server.clear_cache()
    done = CliRunner().invoke(cli, [*arguments, "--cache-salt", "ahead"])
    assert done.exit_code == 0, done.output
    server.clear_cache()

    message = {"role": "user", "content": "Which is worth most?"}
    given = {"documents": documents[2:5], "reuse": {"ratio": 0.0}}
    settings = Settings(backend={"url": server.url})
    app = create_app(settings)
    with serve_in_thread(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        eventually(lambda: app.state.engines.is_supported)
        body = {"model": "tiny", "max_tokens": 1, "messages": [message], "ragboost": given}
        body["cache_salt"] = "ahead"
        usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    # SGLang reuses whole pages of 32 tokens.
    assert usage["ragboost"]["reused"] > 0.6 * usage["prompt_tokens"]


def test_public_documents_tell_no_tenant_what_another_asked(server: EngineServer) -> None:
    texts = [f"Leaflet {number}. {text}" for number, text in enumerate(PASSAGES[:4])]
    client = ChunkClient(server.url, public_key=PUBLIC_KEY)
    client.check()
    stored = prepare(
        client, texts, [[]] * 4, system=None, concurrency=1, on_progress=lambda *_: None
    )
    assert stored.num_stored == 4

    def found(tenant: str, numbers: list[int]) -> list[dict[str, int]]:
        """What becomes of the tokens of one request for each document, which decides its time."""
        tenants = ChunkClient(server.url, tenant=tenant, cache_salt=tenant)
        tenants.check()
        answers = []
        for number in numbers:
            text = f"{texts[number]}\n\nWhat is it worth?"
            messages, chunks = [{"role": "user", "content": text}], [[0, 0, len(texts[number])]]
            usage = tenants.complete(messages, chunks, {"reuse": "approx"})
            answers.append(usage["ragboost"])
        return answers

    loads = read_metric(server.url, "ragboost_chunk_store_loads_total", outcome="loaded")
    before = found("first", [0, 1, 2, 3])
    found("asker", [2, 2, 0])
    assert found("second", [0, 1, 2, 3]) == before
    assert all(origins["computed"] < origins["exact"] + origins["reused"] for origins in before)
    # Nobody has loaded one, which would take another's time.
    assert read_metric(server.url, "ragboost_chunk_store_loads_total", outcome="loaded") == loads


def test_positions_off_by_some_characters_do_no_harm(server: EngineServer) -> None:
    server.clear_cache()
    order = [4, 5]
    exact, _, _ = ask(server, chat(order, reuse="exact"))
    server.clear_cache()
    body = chat(order, reuse={"ratio": 1.0})
    body["ragboost"]["chunks"] = [[m, a + 3, b - 3] for m, a, b in body["ragboost"]["chunks"]]
    answer, _, _ = ask(server, body)

    assert answer == exact


@pytest.mark.parametrize("chunks", [[[0, 0, 400], [0, 300, 700]], [[0, 9, 9]], [[0, 40]], "all"])
def test_positions_that_make_no_sense_are_refused_and_the_engine_goes_on(
    server: EngineServer, chunks: Any
) -> None:
    body = chat([0, 1])
    body["ragboost"]["chunks"] = chunks
    with pytest.raises(HTTPError, match="400"):
        server.post("/v1/chat/completions", body)

    assert isinstance(ask(server, chat([0, 1]))[0], str)


def test_a_text_that_tokenises_differently_inside_its_message_does_no_harm(
    server: EngineServer,
) -> None:
    server.clear_cache()
    glued = "".join(PASSAGES[number].replace(" ", "") for number in (3, 4, 5))
    length = len(glued) // 3
    body = {**chat([0]), "messages": [{"role": "user", "content": f"x{glued}x"}]}
    exact, _, _ = ask(server, {**body, "ragboost": {"reuse": "exact"}})
    server.clear_cache()
    parts = [[0, 1 + n * length, 1 + (n + 1) * length] for n in range(3)]
    body["ragboost"] = {"reuse": {"ratio": 1.0}, "chunks": parts}

    for _ in range(2):
        server.clear_cache()
        assert ask(server, body)[0] == exact


def test_the_proxy_reuses_chunks_and_its_index_follows_exact_blocks_only(
    server: EngineServer,
) -> None:
    server.clear_cache()
    app = create_app(Settings(backend={"url": server.url}))
    (follower,) = app.state.cache_sync.followers.values()
    dice = random.Random(5)
    with serve_in_thread(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        eventually(lambda: bool(follower.is_exact))
        eventually(lambda: app.state.engines.is_supported)
        for _ in range(12):
            documents = [{"id": n, "text": PASSAGES[n]} for n in dice.sample(range(6), 4)]
            body = {
                "model": "tiny",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": "Which is worth most?"}],
                "ragboost": {"documents": documents, "reuse": "approx"},
            }
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            eventually(lambda: bool(follower.is_settled))
        assert read_metric(url, "ragboost_reused_prompt_tokens_total") > 1_000
        assert app.state.cache_sync.fidelity.read().precision > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_reuse_documents_and_split_their_usage(kind: Kind, tmp_path: Path) -> None:
    require(kind)
    settings = {"directory": str(tmp_path)}
    with EngineServer(
        kind, cache_tokens=8192, chunks=settings, dtype="float32", workers=2
    ) as server:
        told = server.get("/chunk_reuse")
        assert told["is_possible"], server.log()[-2000:]
        with pytest.raises(HTTPError, match="400"):
            server.post("/chunk_store", {"ragboost": {"store": {"action": "list"}}})
        ask(server, chat([0, 1, 2, 3]))
        server.clear_cache()
        _, origins, cached = ask(server, chat([3, 1, 0, 2]))
        server.clear_cache()
        whole, _, _ = ask(server, chat([3, 1, 0, 2], reuse={"ratio": 1.0}))
        server.clear_cache()
        exact, none, _ = ask(server, chat([3, 1, 0, 2], reuse="exact"))

    assert none["reused"] == 0
    assert origins["reused"] > 600
    assert origins["recomputed"] > 50
    assert origins["exact"] == cached
    assert whole == exact
