"""An HTTP example of each mechanism in `docs/chunk-policies.md` that is not tested elsewhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from ragboost.cli import app
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread
from tests.engine.conftest import SETTINGS

SYSTEM = list(range(20, 40))
CHUNKS = [[40 + (n * 131 + i * i * 7) % 4000 for i in range(40)] for n in range(3)]
QUESTION = list(range(100, 112))
SOURCES = ("exact", "reused", "recomputed", "computed")
QUIET = {"kv_events_endpoint": None}


@contextmanager
def serving(**chunks: Any) -> Iterator[str]:
    app = create_engine_app(SETTINGS.model_copy(update={**QUIET, "chunks": chunks}))
    with serve_in_thread(app) as url:
        yield url


def post(url: str, order: list[int], reuse: Any, *, max_tokens: int = 4) -> httpx.Response:
    prompt, spans = list(SYSTEM), []
    for number in order:
        spans.append([len(prompt), len(prompt) + len(CHUNKS[number])])
        prompt += CHUNKS[number]
    body = {
        "prompt": prompt + QUESTION,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "ragboost": {"reuse": reuse, "chunks": spans},
    }
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def sources(response: httpx.Response) -> tuple[int, ...]:
    response.raise_for_status()
    return tuple(response.json()["usage"]["ragboost"][name] for name in SOURCES)


def test_a_request_names_its_policy_and_ratio() -> None:
    with serving() as url:
        post(url, [0, 1, 2], "approx")
        assert sources(post(url, [2, 0, 1], {"policy": "gradual", "ratio": 0.25})) == (
            (16, 90, 30, 4 + 12)
        )


def test_chunks_on_disk_are_loaded_by_the_next_server(tmp_path: Path) -> None:
    with serving(directory=str(tmp_path)) as url:
        post(url, [0, 1, 2], "approx")
    with serving(directory=str(tmp_path)) as url:
        assert sources(post(url, [2, 0, 1], {"policy": "epic", "ratio": 0.25})) == (0, 90, 30, 32)


def test_a_corpus_that_is_stored_is_not_computed_again(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    text = " ".join(f"word{n}" for n in range(40))
    corpus.write_text(json.dumps({"id": 1, "text": text}))
    given = ["--corpus", str(corpus), "--alone", "--json"]
    computed = []
    for _ in range(2):
        with serving(directory=str(tmp_path / "kv")) as url:
            done = CliRunner().invoke(app, ["precompute", *given, "--engine", url])
            assert done.exit_code == 0, done.output
            metrics = httpx.get(f"{url}/metrics").text.splitlines()
        computed += [float(line.split()[1]) for line in metrics if '{source="computed"}' in line]
    prompt = json.loads(done.stdout.splitlines()[-1])["num_tokens"]
    assert computed[0] == prompt
    assert computed[1] < prompt / 2


def test_all_documents_but_the_longest_are_stored_behind_it_too(tmp_path: Path) -> None:
    corpus, directory = tmp_path / "corpus.jsonl", tmp_path / "kv"
    texts = [" ".join(f"word{n * n + i}" for i in range(20 + n % 2)) for n in range(3)]
    rows = [{"id": n, "text": text} for n, text in enumerate(texts)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with serving(directory=str(directory)) as url:
        given = ["--corpus", str(corpus), "--engine", url, "--json"]
        done = CliRunner().invoke(app, ["precompute", *given])
        assert done.exit_code == 0, done.output

    assert json.loads(done.stdout.splitlines()[-1])["num_measured"] == 2
    assert len(list(directory.glob("*-behind.safetensors"))) == 2


def test_a_corpus_is_stored_and_measured_by_the_command_and_reused_after_a_restart(
    tmp_path: Path,
) -> None:
    corpus, directory = tmp_path / "corpus.jsonl", tmp_path / "kv"
    texts = [f"Passage {n}: " + " ".join(f"word{n * n + i}" for i in range(20)) for n in range(3)]
    rows = [{"id": n, "text": text} for n, text in enumerate(texts)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    near = tmp_path / "near.jsonl"
    near.write_text("".join(f'{{"id": {n}, "neighbours": [{(n + 1) % 3}]}}\n' for n in range(3)))
    given = ["--corpus", str(corpus), "--neighbours", str(near), "--template", "{text}", "--json"]
    settings = {"directory": str(directory)}

    with serving(**settings) as url:
        done = CliRunner().invoke(app, ["precompute", *given, "--engine", url])
        assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["num_documents"], told["num_stored"], told["num_measured"]) == (3, 3, 3)
    num_files = len(list(directory.glob("*.safetensors")))
    assert num_files == 3 + 3, "each document alone, and behind its neighbour"

    with serving(**settings) as url:
        for policy in ("cachecraft",):
            content = "\n\n".join([*(texts[n] for n in (2, 0, 1)), "What follows?"])
            spans = [[0, at, at + len(text)] for text in texts if (at := content.index(text)) >= 0]
            body = {
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 1,
                "ragboost": {
                    "chunks": sorted(spans),
                    "reuse": {"policy": policy, "ratio": 0.25},
                },
            }
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
            exact, reused, recomputed, _ = sources(answer)
            assert exact > 0
            assert reused > recomputed > 0
            httpx.post(f"{url}/reset_prefix_cache")
