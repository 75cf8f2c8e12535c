"""The front of chunk reuse before a server that renders, tokenises and answers as vLLM does."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import PromptReport, ReuseDefaults, TokenOrigins
from ragboost.chunk_cache.http import asgi, middleware
from ragboost.chunk_cache.http.announcements import AnnouncementInbox, Announcer
from ragboost.chunk_cache.http.asgi import Scope
from ragboost.chunk_cache.http.middleware import (
    CHAT,
    ExactError,
    ReuseMiddleware,
    StartedEngine,
)
from ragboost.chunk_cache.http.reports import ReportInbox, ReportSender
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.proxy.serving import serve_in_thread
from tests.chunk_cache.store.places import HungPlace
from tests.eventually import DEADLINE_S, eventually

PASSAGES = [" ".join(f"word{n} of passage {letter}" for n in range(9)) for letter in "abc"]
REPORT = PromptReport(TokenOrigins(exact=7, reused=40, recomputed=6, computed=5))


def ids_of(text: str) -> list[int]:
    return [sum(part.encode()) for part in text.replace("\n", " \n ").split(" ")]


def rendered(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"<{message['role']}>\n{message['content']}\n" for message in messages)


class FakeServer:
    """Renders and tokenises by words, and keeps the bodies that it was sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.sender = ReportSender()
        self.renders = True
        self.key = ""  # that clients must send to paths below /v1, as to vLLM
        self.answers_report = True  # as vLLM's responses do; SGLang's have no field for it

    def app(self) -> Starlette:
        routes = {
            CHAT: self.chat,
            "/tokenize": self.tokenize,
            "/v1/completions": self.chat,
            "/inference/v1/generate": self.chat,
            "/generate": self.chat,
        }
        return Starlette(
            routes=[
                *(Route(path, route, methods=["POST"]) for path, route in routes.items()),
                Route("/v1/models", self.models),
            ]
        )

    async def models(self, request: Request) -> Response:
        is_right = request.headers.get("authorization", "") == self.key
        return JSONResponse({"data": []}, 200 if is_right else 401)

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        if "messages" not in body:
            return JSONResponse({"tokens": ids_of(body["prompt"])})
        if not self.renders:
            return JSONResponse({"error": "no"}, 400)
        return JSONResponse({"tokens": ids_of(rendered(body["messages"]))})

    async def chat(self, request: Request) -> Response:
        fields = msgspec.json.decode(await request.body(), type=dict[str, Any])
        self.bodies.append(fields)
        plan = (fields.get("kv_transfer_params") or {}).get("ragboost")
        usage = {"prompt_tokens": 58, "prompt_tokens_details": {"cached_tokens": 53}}
        if not fields.get("stream") and self.answers_report:
            told = {"ragboost": REPORT.fields} if plan else None
            return JSONResponse({"choices": [], "usage": usage, "kv_transfer_params": told})
        if plan:
            self.sender.send(plan["reply_to"], REPORT)
        if not fields.get("stream"):
            return JSONResponse({"choices": [], "usage": usage})

        async def events() -> AsyncIterator[bytes]:
            yield b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choi'
            yield b'ces": [], "usage": ' + msgspec.json.encode(usage) + b"}\n\ndata: [DO"
            yield b"NE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


class Front(ReuseMiddleware):
    """As for vLLM, with what it offers given by the test."""

    offered = ReuseDefaults()
    params_field = "kv_transfer_params"

    def defaults(self, scope: Scope) -> ReuseDefaults:
        return self.offered

    def engine(self, scope: Scope) -> StartedEngine | str:
        raise AssertionError

    def prompt_body(self, fields: Mapping[str, Any], *, is_chat: bool) -> Mapping[str, Any]:
        return fields

    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        if "kv_transfer_params" in fields:
            raise ExactError("other_kv_transfer")
        return {**fields, "kv_transfer_params": {"ragboost": plan}}


class Served:
    """A server with the front, over HTTP."""

    def __init__(self) -> None:
        self.engine, self.registry = FakeServer(), CollectorRegistry()
        self.front = Front(self.engine.app(), registry=self.registry)

    def post(self, fields: Mapping[str, Any], path: str = CHAT) -> httpx.Response:
        return self.client.post(path, json=fields)

    def exact(self, reason: str) -> float:
        name = "ragboost_chunk_exact_requests_total"
        return self.registry.get_sample_value(name, {"reason": reason}) or 0.0

    @property
    def inbox(self) -> ReportInbox:
        assert self.front._inbox is not None, "no request has come"
        return self.front._inbox

    client: httpx.Client


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    with serve_in_thread(server.front) as url, httpx.Client(base_url=url) as client:
        server.client = client
        yield server
    server.engine.sender.close()


def chat(**more: Any) -> dict[str, Any]:
    text = "\n\n".join(PASSAGES) + "\n\nWhich one?"
    chunks, at = [], 0
    for passage in PASSAGES:
        at = text.index(passage, at)
        chunks.append([1, at, at + len(passage)])
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return {"messages": messages, "ragboost": {"reuse": "approx", "chunks": chunks, **more}}


def plan_of(served: Served) -> dict[str, Any]:
    plan: dict[str, Any] = served.engine.bodies[-1]["kv_transfer_params"]["ragboost"]
    return plan


def test_the_engine_gets_the_token_positions_of_each_chunk(served: Served) -> None:
    response = served.post(chat())

    plan, ids = plan_of(served), ids_of(rendered(chat()["messages"]))
    assert [ids[start:stop] for start, stop in plan["chunks"]] == [ids_of(p) for p in PASSAGES]
    assert (plan["policy"], plan["ratio"], plan["reuse"]) == ("anchored", 0.15, True)
    assert "ragboost" not in served.engine.bodies[-1]
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
    assert sum(response.json()["usage"]["ragboost"].values()) == 58
    assert response.json()["kv_transfer_params"] is None


def test_tenants_and_salts_have_stored_chunks_of_their_own(served: Served) -> None:
    def tenant(**fields: Any) -> str | None:
        inner = {"tenant": fields.pop("tenant")} if "tenant" in fields else {}
        served.post({**chat(**inner), **fields})
        return plan_of(served).get("tenant")

    names = [tenant(tenant="a"), tenant(cache_salt="a"), tenant(tenant="b"), tenant()]

    assert len(set(names)) == 4
    assert names[3] is None
    assert tenant(tenant="a") == names[0]
    assert served.post(chat(tenant=["a"])).status_code == 400


def test_a_stream_reports_the_same_usage(served: Served) -> None:
    response = served.post({**chat(), "stream": True})

    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    usage = msgspec.json.decode(events[1])["usage"]
    assert usage["ragboost"]["reused"] == 40
    assert usage["prompt_tokens_details"]["cached_tokens"] == 7
    assert events[2] == "[DONE]"


def test_a_response_without_a_field_for_the_report_has_the_same_usage(served: Served) -> None:
    served.engine.answers_report = False

    answer = served.post(chat()).json()

    assert answer["usage"]["ragboost"]["reused"] == 40
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 7


def test_a_request_that_asks_for_exact_kv_still_names_its_chunks(served: Served) -> None:
    served.post(chat(reuse="exact"))

    assert plan_of(served)["reuse"] is False


def test_positions_of_a_prompt_of_token_ids_are_tokens(served: Served) -> None:
    fields = {"prompt": list(range(60)), "ragboost": {"reuse": "approx", "chunks": [[10, 40]]}}
    served.post(fields, "/v1/completions")

    assert plan_of(served)["chunks"] == [[10, 40]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chunks": []}, "no_chunks"),
        ({"chunks": [[1, 0, 9_999]]}, "not_found"),
        ({"chunks": [[1, 0, 9]]}, "not_found"),
        ({"chunks": [[7, 0, 90]]}, "not_found"),
    ],
)
def test_chunks_that_are_not_found_are_computed_and_counted(
    served: Served, change: dict[str, Any], reason: str
) -> None:
    fields = chat(**change)
    response = served.post(fields)

    assert response.status_code == 200
    assert served.engine.bodies == [fields]
    assert served.exact(reason) == 1


@pytest.mark.parametrize(
    "chunks",
    [
        [[1, 0, 40], [1, 30, 90]],  # they overlap
        [[1, 40, 90], [1, 0, 30]],
        [[1, 9, 9]],
        [[1, -4, 30]],
        [[0, 40]],
        [[1, 0.5, 30]],
        {"1": [0, 40]},
    ],
)
def test_positions_that_make_no_sense_are_refused_by_name(served: Served, chunks: Any) -> None:
    response = served.post(chat(chunks=chunks))

    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("ragboost.chunks")
    assert not served.engine.bodies


def test_a_client_with_kv_transfer_parameters_of_its_own_is_left_alone(served: Served) -> None:
    fields = {**chat(), "kv_transfer_params": {"do_remote_prefill": True}}
    served.post(fields)

    assert served.engine.bodies == [fields]
    assert served.exact("other_kv_transfer") == 1
    assert not served.inbox._expected


@pytest.mark.parametrize("name", [b"ragboost", b"rag\\u0062oost"])
@pytest.mark.parametrize("ours", [b"", b',"ragboost":{}'])
def test_a_plan_of_the_clients_own_does_not_reach_the_engine(
    served: Served, name: bytes, ours: bytes
) -> None:
    plan = b'{"version":1,"chunks":[[0,40]],"tenant":"of somebody else"}'
    body = b'{"n":1,"kv_transfer_params":{"%b":%b,"other":2}%b}' % (name, plan, ours)
    served.client.post(CHAT, content=body, headers={"content-type": "application/json"})

    assert [body["kv_transfer_params"] for body in served.engine.bodies] == [{"other": 2}]


@pytest.mark.parametrize("path", ["/generate", "/inference/v1/generate"])
def test_a_plan_reaches_the_engine_by_no_other_route(served: Served, path: str) -> None:
    plan = {"kv_transfer_params": {"ragboost": {"chunks": [[0, 40]], "tenant": "another"}}}
    served.post({**plan, "sampling_params": [{"extra_args": {**plan, "n": 1}}, {"n": 2}]}, path)
    served.post(chat(), path)

    clean = {"kv_transfer_params": None}
    nested = {"sampling_params": [{"extra_args": {**clean, "n": 1}}, {"n": 2}]}
    assert served.engine.bodies == [{**clean, **nested}, chat()]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_a_plan_that_only_pythons_parser_reads_is_refused(served: Served, encoding: str) -> None:
    body = '{"n": NaN, "kv_transfer_params": {"ragboost": {"chunks": [[0, 40]]}}}'
    assert served.client.post(CHAT, content=body.encode(encoding)).status_code == 400
    assert not served.engine.bodies


async def test_a_body_that_is_not_kept_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (asgi, middleware):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 1000)
    sent: list[Any] = []

    async def receive() -> asgi.Message:
        return {"type": "http.request", "body": b" " * 600, "more_body": True}

    async def send(message: asgi.Message) -> None:
        sent.append(message)

    await served.front({"type": "http", "method": "POST", "path": CHAT}, receive, send)
    assert sent[0]["status"] == 400


def test_a_server_that_does_not_render_answers_as_without_the_front(served: Served) -> None:
    served.engine.renders = False

    assert served.post(chat()).status_code == 200
    assert served.exact("not_rendered") == 1


def test_a_refusal_is_told_to_those_who_ask_for_reuse_and_others_are_served(served: Served) -> None:
    served.front.offered = ReuseDefaults(refusal="the model has MLA")

    refused = served.post(chat())
    told = served.client.get("/chunk_reuse").json()

    assert refused.status_code == 400
    assert "the model has MLA" in refused.json()["error"]["message"]
    assert (told["is_possible"], told["refusal"]) == (False, "the model has MLA")
    assert served.post(chat(reuse=None)).status_code == 200


def test_requests_without_chunks_pass_byte_for_byte(served: Served) -> None:
    body = b'{"messages": [ {"role":"user","content":"hi"}],  "n": 1}'
    response = served.client.post(CHAT, content=body, headers={"content-type": "application/json"})

    assert response.status_code == 200
    assert served.engine.bodies == [msgspec.json.decode(body)]


@pytest.mark.parametrize("body", [b'{"ragboost": ', b'["ragboost"]', b'{"ragboost": ' + b"[" * 9])
def test_a_malformed_body_is_the_servers_to_refuse(served: Served, body: bytes) -> None:
    served.client.post(CHAT, content=body)

    assert not served.engine.bodies


def test_reports_go_to_no_place_but_an_inbox() -> None:
    sender = ReportSender()

    for place in (None, ["../../x", 1], ["ragboost-aaaaaaaa", 1], ["tcp://127.0.0.1:1", 1], [1]):
        sender.send(place, REPORT)
    sender.close()


@pytest.fixture
def place(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungPlace]:
    """A place of stored chunks behind the engine that the front announces to."""
    monkeypatch.setattr(middleware, "_LOAD_TIMEOUT_S", DEADLINE_S)
    hung, name = HungPlace(), uuid4().hex
    store = TieredStore(remote=hung, waits=False)
    library = ChunkLibrary(store, identity=Identity(model="m"), regime="regime")
    inbox = AnnouncementInbox(name, rank=0, library=lambda: library)
    served.front._announcer = Announcer(name, num_inboxes=1)
    served.front._has_more_than_memory = served.front._takes_commands = True
    yield hung
    hung.may_answer.set()
    inbox.close()
    store.close()


def test_a_request_waits_in_front_of_an_engine_that_cannot_wait(
    served: Served, place: HungPlace
) -> None:
    served.front.loads_first = True
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(served.post, chat())
        assert place.was_asked.acquire(timeout=DEADLINE_S)
        assert not served.engine.bodies
        place.may_answer.set()
        assert answer.result(DEADLINE_S).status_code == 200
    assert len(plan_of(served)["chunks"]) == 3


def test_stored_chunks_are_listed_and_removed_over_http(served: Served, place: HungPlace) -> None:
    def ask(**store: Any) -> Any:
        body = chat(store=store)
        if store.get("action", "list") == "list" or "keys" in store:
            body["ragboost"].pop("chunks")
        answer = served.post(body, path="/chunk_store")
        assert answer.status_code == 200, answer.text
        return answer.json()["chunks"]

    place.may_answer.set()
    assert ask() == []
    pinned = ask(action="pin")
    assert [(row["done"], row["places"]) for row in pinned] == [(False, [])] * 3
    assert len({row["key"] for row in pinned}) == 3
    keys = [row["key"] for row in pinned]
    assert [row["key"] for row in ask(action="evict", keys=keys)] == keys
    eventually(lambda: not any(row["places"] for row in ask(keys=keys)))
    assert (
        served.post({"ragboost": {"store": {"action": "drop"}}}, "/chunk_store").status_code == 400
    )
    assert served.post({"ragboost": 7}, path="/chunk_store").status_code == 400
    assert not served.engine.bodies


def test_a_command_answers_for_each_document_in_its_order(served: Served, place: HungPlace) -> None:
    """A row tells no more than its place to which document it belongs."""
    place.may_answer.set()
    text = f"{PASSAGES[1]}\n\n{PASSAGES[0]}\n\nshort\n\nWhich one?"
    at = text.index("short")
    spans = [(0, len(PASSAGES[1])), (len(PASSAGES[1]) + 2, at - 2), (at, at + 5), (at + 6, 10_000)]

    def evict(spans: Sequence[tuple[int, int]]) -> httpx.Response:
        named = {"chunks": [[0, *span] for span in spans], "store": {"action": "evict"}}
        messages = [{"role": "user", "content": text}]
        return served.post({"messages": messages, "ragboost": named}, "/chunk_store")

    keys = [row["key"] for row in evict(spans).json()["chunks"]]
    assert [row["key"] for row in evict(spans[1:2]).json()["chunks"]] == [keys[1]]
    assert keys[0] != keys[1]
    assert keys[2:] == [None, None]
    assert evict([(number, number + 1) for number in range(1001)]).status_code == 400


def test_stored_chunks_are_reached_with_the_servers_key_only(
    served: Served, place: HungPlace
) -> None:
    path = "/chunk_store"
    place.may_answer.set()
    served.engine.key = "Bearer secret"
    assert served.post(chat(), path).status_code == 401
    assert served.post({"ragboost": {"store": 7}}, path).status_code == 401
    served.client.headers["authorization"] = "Bearer secret"
    assert served.post(chat(), path).status_code == 200


def test_beam_search_whose_requests_have_no_plan_is_computed_exactly(served: Served) -> None:
    fields = {**chat(), "use_beam_search": True, "n": 2}
    assert served.post(fields).status_code == 200
    assert served.engine.bodies == [fields]
    assert served.exact("beam_search") == 1


@pytest.mark.parametrize("token", [2**63, 2**70, -1])
def test_what_is_no_token_id_is_the_servers_to_refuse(
    served: Served, place: HungPlace, token: int
) -> None:
    place.may_answer.set()
    served.front.loads_first = True
    body = {"prompt": [token] * 40, "ragboost": {"reuse": "approx", "chunks": [[0, 40]]}}
    assert served.post(body, "/v1/completions").status_code == 200
    assert served.engine.bodies[-1]["prompt"] == [token] * 40
    assert served.exact("not_found") == 1
    answer = served.post(body | {"ragboost": {"chunks": [[0, 40]]}}, "/chunk_store")
    assert answer.status_code == 200
    assert [row["key"] for row in answer.json()["chunks"]] == [None]


def test_metrics_show_what_the_engine_holds(served: Served, place: HungPlace) -> None:
    served.client.get("/metrics")
    name = "ragboost_chunk_store_entries"
    assert served.registry.get_sample_value(name, {"tier": "memory"}) == 0
    name = "ragboost_chunk_store_capacity_bytes"
    assert served.registry.get_sample_value(name, {"tier": "memory"}) == 1 << 30
    served.client.get("/metrics")
    assert (
        served.registry.get_sample_value("ragboost_chunk_store_evictions_total", {"tier": "memory"})
        == 0
    )


def test_only_the_holder_of_the_public_key_stores_for_all_tenants(served: Served) -> None:
    assert served.post(chat(public="")).status_code == 400
    served.front._public_key = "secret"
    for wrong in ("", "Secret", "é", 7, True):
        refused = served.client.post(
            CHAT,
            content=json.dumps(chat(public=wrong)),
            headers={"content-type": "application/json"},
        )
        assert refused.status_code == 400, wrong
        assert "secret" not in refused.text
    assert served.post({"ragboost": {"public": "no"}}, path="/chunk_store").status_code == 400
    assert not served.engine.bodies
    assert served.post(chat(public="secret")).status_code == 200
    assert plan_of(served)["public"] is True
    assert served.post(chat()).status_code == 200
    assert "public" not in plan_of(served)


def test_a_store_of_several_workers_says_that_it_takes_no_commands(served: Served) -> None:
    refused = served.post({"ragboost": {"store": {"action": "list"}}}, path="/chunk_store")
    assert refused.status_code == 400
    assert "several workers" in refused.text
