"""SGLang starts with its own radix cache where its internals are not those that reuse needs."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ragboost.chunk_cache.http.reports import read_status, remove_status
from ragboost.chunk_cache.sglang.flags import instance
from ragboost.chunk_cache.sglang.plugin import _make_cache


def test_a_moved_internal_switches_reuse_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = ModuleType("sglang.srt.mem_cache.registry")
    registry.default_radix_cache_factory = lambda context: "its own cache"  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setitem(sys.modules, "ragboost.chunk_cache.sglang.cache", None)  # as if moved
    context = SimpleNamespace(tp_rank=0, server_args=SimpleNamespace(port=1))

    assert _make_cache(context) == "its own cache"

    refusal = read_status(instance(1))
    remove_status(instance(1))
    assert refusal is not None
    assert refusal.startswith("engine_internals: ModuleNotFoundError: ")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
