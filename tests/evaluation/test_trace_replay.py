"""`ragboost bench trace`: traces without texts, replayed against a real server."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ragboost.cli import app
from ragboost.errors import ConfigError, RequestError
from ragboost.evaluation.traces import TracePart, TraceTexts, read_trace
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

LENGTHS = {"1": 40, "2": 30, "9": 20, "10": 20, "11": 20, "5": 50, "6": 60, "7": 10, "8": 5}


def pulse(t_s: float, varying: int, passages: list[int], **fields: Any) -> dict[str, Any]:
    parts = {"sys_prompt": [1, 2, varying], "passages_ids": passages, "history": [7]}
    row = {"t_s": t_s, "session": "s", "output_tokens": 3, **parts, "web_search": []}
    return {**row, "user_input": [8], **fields}


def mooncake(ms: int, ids: list[int], length: int) -> dict[str, Any]:
    return {"timestamp": ms, "input_length": length, "output_length": 4, "hash_ids": ids}


def recorded(t_s: float, **fields: Any) -> dict[str, Any]:
    shape = {"tenant": "t", "session": None, "head": "h", "head_tokens": 39}
    documents = {"doc_ids": ["a", "b"], "doc_tokens": [20, 30]}
    return {"t_s": t_s, **shape, **documents, "tail_tokens": 7, **fields}


def write(folder: Path, *rows: Any, name: str = "trace.jsonl") -> Path:
    path = folder / name
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def bench(path: Path, url: str, *options: str) -> Any:
    command = ["bench", "trace", str(path), "--endpoint", url, "--model", "m", *options]
    done = CliRunner().invoke(app, [*command, "--speed", "1000", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_ragpulse_is_read_from_its_folder_in_order_of_arrival(tmp_path: Path) -> None:
    write(tmp_path, pulse(9.5, 9, [5, 6]), pulse(2.0, 10, []), name="trace.jsonl.gz")
    (tmp_path / "token_lengths.json").write_text(json.dumps(LENGTHS))

    first, second = read_trace(tmp_path)

    assert (first.arrival_s, second.arrival_s) == (0.0, 7.5)
    assert first.documents == ()
    assert second.documents == (TracePart("5", 50), TracePart("6", 60))
    assert second.before[-1] == TracePart("9", 20)
    assert second.prompt_tokens == 40 + 30 + 20 + 110 + 15
    assert second.output_tokens == 3


def test_blocks_of_mooncake_are_parts_that_stay_where_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(0, [0, 1], 700), mooncake(3000, [0, 2], 1024))

    first, second = read_trace(path)

    assert [part.tokens for part in first.before] == [512, 188, 0]
    assert second.arrival_s == 3.0
    assert second.before[0] == first.before[0]
    assert (second.prompt_tokens, second.documents) == (1024, ())


def test_equal_parts_are_equal_texts_and_others_are_not(tmp_path: Path) -> None:
    requests = read_trace(write(tmp_path, recorded(0.0), recorded(1.0)))

    [one, two] = [TraceTexts().messages(request) for request in requests]

    heads = [messages[0]["content"].split("\n\n") for messages in (one, two)]
    assert heads[0][0] == heads[1][0]
    assert heads[0][1] == heads[1][1]
    assert heads[0][1].count("<document>") == 2
    assert one[1] != two[1]
    assert len(heads[0][0].split()) == 39


def test_an_id_that_is_no_unicode_has_a_text(tmp_path: Path) -> None:
    row = recorded(0.0, doc_ids=["\ud800", "\udfff"], head="\ud800")
    [request] = read_trace(write(tmp_path, row))

    [system, _] = TraceTexts().messages(request)

    assert system["content"].count("<document>") == 2


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "documents": []},
        [1],
        recorded(0.0, doc_tokens=[-1, 2]),
        recorded(0.0, doc_tokens=[1]),
        recorded(float("nan")),
        mooncake(0, [1], 10**12),
        {"timestamp": 0, "hash_ids": 7, "input_length": 5, "output_length": 1},
        pulse(0.0, 99, []),
        recorded(0.0, head_tokens=0, doc_ids=[], doc_tokens=[], tail_tokens=0),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, row: Any) -> None:
    (tmp_path / "token_lengths.json").write_text(json.dumps(LENGTHS))

    with pytest.raises(RequestError, match=r"trace\.jsonl:2"):
        read_trace(write(tmp_path, recorded(0.0), row))


def test_the_proxy_computes_less_of_the_trace_than_the_server_alone(tmp_path: Path) -> None:
    rows = [pulse(float(i), 9 + i % 3, [5, 6] if i % 2 else [6, 5]) for i in range(20)]
    path = write(tmp_path, *rows)
    (tmp_path / "token_lengths.json").write_text(json.dumps(LENGTHS))
    with FakeEngine() as engine:
        plain = bench(path, engine.url, "--concurrency", "1")
    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        boosted = bench(path, proxy.url, "--concurrency", "1")

    assert plain["requests"] == boosted["requests"] == 20
    assert plain["failed"] == boosted["failed"] == 0
    assert 0 < plain["not_computed"] < boosted["not_computed"] < 1
    assert 0 < boosted["ttft_median_s"] <= boosted["ttft_p95_s"]


def test_no_more_requests_run_than_allowed(tmp_path: Path) -> None:
    path = write(tmp_path, *[recorded(0.0) for _ in range(30)])
    with FakeEngine() as engine:
        result = bench(path, engine.url, "--concurrency", "3")

        assert result["requests"] == 30
        assert engine.peak_active <= 3


def test_a_log_of_the_proxy_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with FakeEngine() as engine:
        settings = proxy_settings(engine.url, proxy={"record": path})
        with ProxyServer(settings) as proxy:
            bench(write(tmp_path, *[recorded(0.0) for _ in range(5)]), proxy.url)
        again = bench(path, engine.url)

    assert again["requests"] == 5


def test_an_endpoint_that_is_no_address_is_one_sentence(tmp_path: Path) -> None:
    command = ["bench", "trace", str(write(tmp_path, recorded(0.0))), "--endpoint", "nonsense"]
    done = CliRunner().invoke(app, [*command, "--model", "m"])
    assert isinstance(done.exception, ConfigError)
    assert "endpoint must begin with http://" in str(done.exception)


def test_a_server_that_refuses_everything_is_one_sentence(tmp_path: Path, unused_port: int) -> None:
    path = write(tmp_path, recorded(0.0))
    url = f"http://127.0.0.1:{unused_port}"

    done = CliRunner().invoke(app, ["bench", "trace", str(path), "--endpoint", url, "--model", "m"])

    assert "no request was answered" in str(done.exception)
