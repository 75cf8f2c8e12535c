"""Moved keys are the keys computed at the other place."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import TokenSource
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.rope import Frequencies, rotate, rotation_angles
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, flat, make_prompt
from tests.chunk_cache.reference import ordinary


def speeds(pairs: int = 4) -> Frequencies:
    return Frequencies(10_000.0 ** (-torch.arange(pairs).double() / pairs))


def turn(keys: torch.Tensor, by: int, *, layout: str = "half") -> torch.Tensor:
    count = torch.arange(keys.shape[-2])
    angle = rotation_angles(speeds(), speeds(), stored=count, target=count + by)
    return rotate(keys, angle.cos().float(), angle.sin().float(), layout=layout)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_two_moves_are_one(layout: str) -> None:
    keys = torch.randn(1, 2, 5, 8)
    twice = turn(turn(keys, 30, layout=layout), -12, layout=layout)
    torch.testing.assert_close(twice, turn(keys, 18, layout=layout), atol=1e-5, rtol=1e-5)


def test_a_move_by_nothing_changes_no_bit_and_leaves_its_input_alone() -> None:
    keys = torch.randn(1, 2, 5, 10).bfloat16()
    before = keys.clone()

    moved = turn(keys, 0)

    assert torch.equal(moved, before)
    moved += 1
    assert torch.equal(keys, before)


def test_dimensions_without_rotation_are_kept() -> None:
    keys = torch.randn(1, 2, 5, 12)
    assert torch.equal(turn(keys, 7)[..., 8:], keys[..., 8:])


def test_a_layer_without_rope_is_kept_and_the_layouts_are_measured() -> None:
    keys = torch.randn(1, 2, 5, 8)
    assert torch.equal(turn(keys, 9, layout="none"), keys)
    assert build_adapter("cohere2-nope-global").layouts == (
        *("interleaved",) * 3,
        "none",
    )
    assert build_adapter("smollm3-nope").layouts == (*("half",) * 3, "none")


def test_moving_bf16_keys_once_from_the_original_loses_less_than_moving_on_and_on() -> None:
    keys = torch.randn(1, 4, 64, 8)
    want = turn(keys, 1000)
    once = turn(keys.bfloat16(), 1000).float()
    often = keys.bfloat16()
    for _ in range(10):
        often = turn(often, 100)
    assert (once - want).norm() < 0.7 * (often.float() - want).norm()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"rope_type": "dynamic", "factor": 4.0}),
        (
            "phi3",
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [1.5, 2.0, 3.0, 4.0],
                "original_max_position_embeddings": 48,
                "factor": 4.0,
            },
        ),
    ],
)
def test_chunks_stored_under_other_speeds_are_turned_to_the_speeds_of_the_prompt(
    kind: str, options: dict[str, object]
) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48 if kind == "llama" else 192,
        original_max_position_embeddings=48,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters={"rope_theta": 10_000.0, **options},
    )
    adapter = ModelAdapter(AutoModelForCausalLM.from_config(config).eval())
    system, chunks, question = make_prompt()
    tokens = [*system, *flat(chunks), *question]
    reuse = ChunkReuse(adapter, TieredStore(), backend=None)
    reuse.precompute(system, chunks)
    assert adapter.regime(len(system) + 20) != adapter.regime(len(tokens))

    assembly = reuse.assemble(system, chunks, question)

    assert assembly.source[: len(system)].eq(TokenSource.MISSING).all(), "a prompt of other speeds"
    assert assembly.source[len(system)] == 1, "the first chunk is approximate as well"
    # Keys of layer 0 depend on token and position alone, so they must be what the prompt has.
    cache = adapter.empty_cache(len(tokens))
    adapter.forward(tokens, cache, plan=ForwardPlan(torch.arange(len(tokens))))
    part = slice(len(system), assembly.question)
    torch.testing.assert_close(
        assembly.cache.layers[0].keys[:, :, part],
        cache.layers[0].keys[:, :, part],
        atol=2e-6,
        rtol=1e-5,
    )
    result = reuse.prefill(system, chunks, question, ratio=1.0)
    torch.testing.assert_close(result.logits, ordinary(adapter.model, tokens), atol=1e-6, rtol=1e-5)
