"""Training under the mask: the loss is that of serving, and falls."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ragboost.errors import RequestError
from ragboost.graph.depcache import DepCache
from ragboost.graph.layout import DepPrompt
from research.dependency_tuning import TuningExample, answer_loss, collate
from research.graph_tasks import VOCAB_SIZE, draw_case, draw_cases
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
    rng = np.random.default_rng(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    examples = [draw_case(rng, roots=1, first=2, second=1).example(is_tree=True) for _ in range(8)]
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


def test_cases_are_repeatable_and_their_questions_have_one_answer() -> None:
    first, second = draw_cases(3, seed=5), draw_cases(3, seed=5)

    assert first == second
    for case in first:
        assert len(case.paths) == 18
        assert [question.task for question in case.questions] == ["one_hop", "two_hop", "root"]
        assert case.tree(case.questions[0]).nodes[1].paths == case.paths  # type: ignore[union-attr]
