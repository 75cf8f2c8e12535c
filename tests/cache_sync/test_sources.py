"""Where events come from, as backends say."""

import pytest

from ragboost.cache_sync.sources import EventSource, find_sources
from ragboost.errors import ConfigError


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
        EventSource("r/0", "tcp://gpu-1:5557", replay_endpoint="tcp://gpu-1:5657", topic="kv@tiny"),
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
        EventSource("r/0", "tcp://[::1]:5557", replay_endpoint="tcp://[::1]:5600"),
        EventSource("r/1", "tcp://[::1]:5558", replay_endpoint="tcp://[::1]:5601"),
    ]


@pytest.mark.parametrize(
    "answer",
    [{}, {"kv_events": None}, {"kv_events": {"publisher": "ragboost"}}, {"detail": "Not Found"}],
)
def test_a_backend_without_events_has_no_sources(answer: dict[str, object]) -> None:
    assert find_sources(answer, backend_url="http://a", name="r") == []


def test_ranks_add_to_the_port() -> None:
    source = EventSource("r", "tcp://a:5557", replay_endpoint="tcp://a:5600")
    assert source.rank(0) is source
    assert source.rank(2) == EventSource("r/2", "tcp://a:5559", replay_endpoint="tcp://a:5602")
    assert EventSource("r", "inproc://kv").rank(1).endpoint == "inproc://kv_dp1"
    with pytest.raises(ConfigError, match="no port to count from"):
        EventSource("r", "ipc:///run/kv").rank(1)
