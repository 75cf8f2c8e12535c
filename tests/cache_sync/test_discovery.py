"""What backends say about the size of their prefix cache."""

import asyncio

import pytest

from ragboost.cache_sync.discovery import discover, read_capacity
from ragboost.cache_sync.sources import DISCOVERY_PATHS
from ragboost.config import BackendSettings, Settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.upstream.backends import Backend


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
        backend.close()
        server.close()
        await server.wait_closed()
