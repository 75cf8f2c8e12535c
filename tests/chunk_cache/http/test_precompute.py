"""`ragboost precompute --engine` against a server that answers as vLLM with chunk reuse does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from ragboost.booster.context import render_document
from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.http.precompute import prepare
from ragboost.cli import app
from ragboost.errors import BackendConnectionError, BackendStatusError, ConfigError, RequestError
from ragboost.proxy.serving import serve_in_thread
from ragboost.types import Document

TEXTS = ["the first passage about rivers", "the second passage about rivers", "roads and rivers"]
NEIGHBOURS = [(1,), (0,), (0, 1)]


class FakeEngine:
    """Keeps the bodies it was sent; stores every document but those about roads."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.refusal: str | None = None
        self.max_model_len = 4096
        self.refused = ""  # documents with this text

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/chunk_reuse", self.describe),
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ]
        )

    async def describe(self, request: Request) -> Response:
        return JSONResponse({"is_possible": self.refusal is None, "refusal": self.refusal})

    async def models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": self.max_model_len}]})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        content = body["messages"][-1]["content"]
        if self.refused and self.refused in content:
            return JSONResponse({"error": {"message": "the prompt is too long"}}, 400)
        usage: dict[str, Any] = {"prompt_tokens": len(content.split())}
        if "roads" not in content:
            is_measured = body["ragboost"].get("measure", False)
            usage["ragboost"] = {"recomputed": 5 if is_measured else 0}
        return JSONResponse({"usage": usage})


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with serve_in_thread(engine.app()) as address:
        yield address


def ready(url: str, **options: Any) -> ChunkClient:
    client = ChunkClient(url, **options)
    client.check()
    return client


def test_each_document_is_sent_alone_and_then_behind_its_neighbours(
    engine: FakeEngine, url: str
) -> None:
    stages: list[tuple[str, int, int]] = []
    told = prepare(
        ready(url, tenant="red", cache_salt="s", api_key="k"),
        TEXTS,
        NEIGHBOURS,
        system="Answer.",
        concurrency=1,
        on_progress=lambda *stage: stages.append(stage),
    )

    assert (told.num_documents, told.num_stored, told.num_measured) == (3, 2, 2)
    assert stages[-1] == ("measures", 3, 3)
    alone, behind = engine.bodies[0], engine.bodies[3]
    assert alone["ragboost"] == {
        "chunks": [[1, 0, len(TEXTS[0])]],
        "reuse": "approx",
        "exact_chunks": 1,
        "tenant": "red",
    }
    assert (alone["cache_salt"], alone["model"], engine.keys) == ("s", "tiny", ["Bearer k"])
    content = behind["messages"][1]["content"]
    assert [content[start:stop] for _, start, stop in behind["ragboost"]["chunks"]] == [
        TEXTS[1],
        TEXTS[0],
    ]
    assert behind["ragboost"]["measure"] is True
    assert behind["ragboost"]["reuse"] == {"policy": "reuse", "ratio": 0.0}


@pytest.mark.parametrize(("lengths", "constant"), [((9, 512, 513, 40), 1), ((700, 600, 900), 1)])
def test_one_constant_document_precedes_all_others_without_neighbours(
    engine: FakeEngine, url: str, lengths: tuple[int, ...], constant: int
) -> None:
    texts = [f"{number} " + "w " * (length - 3) for number, length in enumerate(lengths)]
    told = prepare(
        ready(url), texts, None, system=None, concurrency=1, on_progress=lambda *stage: None
    )

    behind = [body for body in engine.bodies if "measure" in body["ragboost"]]
    pairs = [body["messages"][0]["content"].split("\n\n")[:2] for body in behind]
    others = [text for number, text in enumerate(texts) if number != constant]
    assert pairs == [[texts[constant], text] for text in others]
    assert told.num_measured == len(others)


def test_neighbours_that_do_not_fit_into_the_context_are_left_out(
    engine: FakeEngine, url: str
) -> None:
    engine.max_model_len = 64 + 14  # two of these passages, each with a question
    prepare(
        ready(url),
        TEXTS,
        [(), (), (0, 1)],
        system=None,
        concurrency=1,
        on_progress=lambda *stage: None,
    )

    assert len(engine.bodies[-1]["ragboost"]["chunks"]) == 2
    assert engine.bodies[-1]["messages"][0]["content"].startswith(TEXTS[1])


def test_a_document_that_the_engine_refuses_is_left_out_and_named(
    engine: FakeEngine, url: str, tmp_path: Path
) -> None:
    engine.refused = "second"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(TEXTS)))
    near = tmp_path / "near.jsonl"
    near.write_text("".join(f'{{"id": {n}, "neighbours": {[*NEIGHBOURS[n]]}}}\n' for n in range(3)))
    arguments = ["--engine", url, "--corpus", str(corpus), "--neighbours", str(near)]

    done = CliRunner().invoke(app, ["precompute", *arguments])

    assert done.exit_code == 0, done.output
    assert "1 of 3 documents stored" in done.output
    assert "1 refused by the engine" in done.output
    assert "too long" in done.output
    measured = [body for body in engine.bodies if "measure" in body["ragboost"]]
    assert not any("second" in body["messages"][0]["content"] for body in measured)


@pytest.mark.parametrize("num_documents", [3, 300])
def test_an_engine_that_refuses_everything_is_not_asked_for_the_whole_corpus(
    engine: FakeEngine, url: str, num_documents: int
) -> None:
    engine.refused = "rivers"
    with pytest.raises(RequestError, match="too long"):
        prepare(
            ready(url),
            TEXTS * (num_documents // 3),
            [()] * num_documents,
            system=None,
            concurrency=2,
            on_progress=lambda *stage: None,
        )
    assert len(engine.bodies) < 40


def test_the_command_prints_one_json_object(url: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(TEXTS)))
    arguments = ["--engine", url, "--corpus", str(corpus), "--json"]

    done = CliRunner().invoke(app, ["precompute", *arguments])

    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["num_documents"] == 3
    assert told["num_stored"] == 2


def test_documents_are_stored_as_ragboost_writes_them_unless_a_template_says_otherwise(
    engine: FakeEngine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": 7, "title": "Rivers", "text": TEXTS[0]}) + "\n")
    monkeypatch.setenv("RAGBOOST_HINTS__LABEL_TEMPLATE", "<{label}>")
    for template in ([], ["--template", "{title}\\n{text}"]):
        arguments = ["--engine", url, "--corpus", str(corpus), "--alone", *template]
        assert CliRunner().invoke(app, ["precompute", *arguments]).exit_code == 0

    stored = []
    for body in engine.bodies:
        [[_, start, stop]] = body["ragboost"]["chunks"]
        content = body["messages"][0]["content"]
        assert content[stop:].strip(), "other text behind the document, as in prompts"
        stored.append(content[start:stop])
    assert stored == [
        render_document(Document(TEXTS[0], id=7, title="Rivers"), label="<7>"),
        f"Rivers\n{TEXTS[0]}",
    ]


def test_an_engine_that_cannot_reuse_chunks_says_why(engine: FakeEngine, url: str) -> None:
    engine.refusal = "worker_processes"
    with pytest.raises(ConfigError, match="cannot reuse chunks: worker_processes"):
        ChunkClient(url).check()


def test_a_server_without_chunk_reuse_is_told_apart() -> None:
    with (
        serve_in_thread(Starlette()) as url,
        pytest.raises(ConfigError, match=r"python -m ragboost\.chunk_cache vllm"),
    ):
        ChunkClient(url).check()


def test_an_engine_that_is_gone_or_refuses_is_an_error_of_the_backend(
    engine: FakeEngine, url: str
) -> None:
    with serve_in_thread(Starlette()) as gone:
        pass
    with pytest.raises(BackendConnectionError):
        ChunkClient(gone).check()
    with pytest.raises(ConfigError, match="http:// or https://"):
        ChunkClient("engine:8000")
    client = ready(url)
    with pytest.raises(BackendStatusError, match="status 500"):
        client.complete([], [], {})
