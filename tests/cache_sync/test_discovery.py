"""Event sources and capacities in the responses of engines."""

import asyncio

import pytest

from ragboost.cache_sync.discovery import (
    DISCOVERY_PATHS,
    EventSource,
    discover,
    find_sources,
    read_capacity,
)
from ragboost.config import BackendSettings, Settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.upstream.backend import Backend


@pytest.mark.parametrize(
    ("metrics", "capacity"),
    [
        ('vllm:cache_config_info{block_size="32",num_gpu_blocks="129"} 1.0', 4096),
        ('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1.0', None),
        ('# HELP x\nsglang:max_total_num_tokens{model_name="m"} 4096.0\n', 4096),
        ("ragboost_engine_kv_cache_capacity_tokens 65536.0", 65_536),
        ("sglang:max_total_num_tokens NaN", None),
        ("", None),
    ],
)
def test_the_capacity_is_read_from_metrics(metrics: str, capacity: int | None) -> None:
    assert read_capacity(metrics) == capacity


def test_one_configured_endpoint_does_not_fit_several_backends() -> None:
    settings = Settings(
        backends=[{"url": "http://a"}, {"url": "http://b"}],  # type: ignore[arg-type]
        engine_hooks={"endpoint": "tcp://127.0.0.1:5557"},  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigError, match="single backend"):
        create_app(settings)


@pytest.mark.parametrize("late", [*DISCOVERY_PATHS, "/metrics"])
async def test_a_backend_that_left_a_question_unanswered_is_not_up_yet(late: str) -> None:
    is_started = False

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        if is_started or path != late:
            writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = Backend(BackendSettings(url=f"http://127.0.0.1:{port}"))
    try:
        assert not (await discover(backend)).is_up
        is_started = True
        assert (await discover(backend)).is_up
    finally:
        await backend.aclose()
        server.close()
        await server.wait_closed()


def test_vllm_names_a_publisher_per_rank_and_wildcards_become_the_backends_host() -> None:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://0.0.0.0:5657",
        "topic": "kv@tiny",
    }
    second = config | {"endpoint": "tcp://10.0.0.9:5558", "replay_endpoint": None}
    answer = {"0": config, "1": second, "2": {"publisher": "null"}}
    assert find_sources(answer, backend_url="http://gpu-1:8000", name="r") == [
        EventSource(
            "r/0",
            "tcp://gpu-1:5557",
            replay_endpoint="tcp://gpu-1:5657",
            topic="kv@tiny",
            is_wildcard=True,
        ),
        EventSource("r/1", "tcp://10.0.0.9:5558", topic="kv@tiny"),
    ]


def test_sglang_counts_ports_from_a_base() -> None:
    events = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "",
        "block_size": 16,
        "dp_size": 2,
        "replay_endpoint_port_base": 5600,
    }
    found = find_sources({"kv_events": events}, backend_url="http://[::1]:3000", name="r")
    assert found == [
        EventSource(
            "r/0", "tcp://[::1]:5557", replay_endpoint="tcp://[::1]:5600", is_wildcard=True
        ),
        EventSource(
            "r/1", "tcp://[::1]:5558", replay_endpoint="tcp://[::1]:5601", is_wildcard=True
        ),
    ]


@pytest.mark.parametrize(
    "answer",
    [{}, {"kv_events": None}, {"kv_events": {"publisher": "ragboost"}}, {"detail": "Not Found"}],
)
def test_a_backend_without_events_has_no_sources(answer: dict[str, object]) -> None:
    assert find_sources(answer, backend_url="http://a", name="r") == []
