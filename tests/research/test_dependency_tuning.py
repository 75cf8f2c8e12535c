"""Training under the mask: the loss is that of serving, and falls."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ragboost.errors import RequestError
from ragboost.graph.depcache import DepCache
from ragboost.graph.layout import DepPrompt
from research.dependency_tuning import TuningExample, answer_loss, collate
from tests.chunk_cache.families import build_adapter
from tests.graph import cases


def test_the_loss_is_that_of_the_served_model() -> None:
    adapter = build_adapter()
    asked = [
        TuningExample(DepPrompt.of(cases.SYSTEM, cases.GRAPH[:count], (12, 13, 14)), {"task": 1})
        for count in (2, 6)
    ]

    loss = answer_loss(adapter.model, collate(asked)).detach()

    served = []
    for count in (2, 6):
        prompt = DepPrompt.of(cases.SYSTEM, cases.GRAPH[:count], (12, 13))
        logits = DepCache(adapter).compute_depkv(prompt).logits
        served.append(-logits.log_softmax(-1)[14])
    assert float(loss) == pytest.approx(float(sum(served)) / 2, rel=1e-4)


def test_tuning_on_the_tree_lowers_the_loss() -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    examples = [
        TuningExample(DepPrompt.of(cases.SYSTEM, cases.GRAPH[at:], (12, 13, 14 + at)), {"task": 1})
        for at in range(4)
    ]
    batch = collate(examples)
    first = float(answer_loss(model, batch).detach())
    for _ in range(15):
        answer_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert float(answer_loss(model, batch).detach()) < first / 2


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="answers"):
        collate([TuningExample(cases.prompt(), {"task": 2})])
