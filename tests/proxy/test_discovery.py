"""What backends say about the size of their prefix cache."""

import pytest

from ragboost.config import Settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.discovery import read_capacity


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
