"""KV from a store in host memory is assembled on the model's device. Needs no accelerator: tensors
on the meta device compute nothing, and refuse to be mixed with those in memory."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.fill import assemble_plan
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_prompt
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.ranks import ONE_RANK
from ragboost.chunk_cache.model.request_cache import RequestCache
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import learn, make_library, make_request

DEVICE = torch.device("meta")


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


def planned(adapter: ModelAdapter) -> PromptPlan:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks)
    request, tokens = make_request(system, chunks, question)
    keys = find_chunks(request, tokens, library)
    plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
    assert isinstance(plan, PromptPlan)
    return plan


def on_accelerator(adapter: ModelAdapter) -> Any:
    """Return the parts of a model that assembly uses, on a device of their own."""

    def empty_cache(length: int) -> RequestCache:
        layers = adapter.empty_cache(length).layers
        return RequestCache([(layer.keys.to(DEVICE), layer.values.to(DEVICE)) for layer in layers])

    def frequencies(length: int) -> Any:
        found = adapter.frequencies(length)
        return tuple(replace(each, inverse=each.inverse.to(DEVICE)) for each in found)

    return SimpleNamespace(
        device=DEVICE,
        layouts=adapter.layouts,
        ranks=ONE_RANK,
        empty_cache=empty_cache,
        frequencies=frequencies,
    )


def test_kv_of_a_store_in_host_memory_is_assembled_on_the_models_device(
    adapter: ModelAdapter,
) -> None:
    assembly = assemble_plan(on_accelerator(adapter), planned(adapter), prefix=None)

    layers = assembly.cache.layers
    assert {t.device for layer in layers for t in (layer.keys, layer.values)} == {DEVICE}
    assert {assembly.source.device} == {DEVICE}
