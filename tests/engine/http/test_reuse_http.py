"""The `ragboost` object of a request: what it asks for, what usage says, what is refused."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ragboost.chunk_cache.selection import MEASURED, POLICIES
from ragboost.chunk_cache.selection.calibration import Calibration, shape_digest
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.engine.builtin import build_tokenizer
from ragboost.engine.loading import load_model
from ragboost.errors import ConfigError
from ragboost.proxy.serving import serve_in_thread
from tests.engine.conftest import MODEL, SETTINGS, Served
from tests.engine.leaving import leave_while_running

APPROX = {"reuse": {"policy": "gradual", "ratio": 0.2}}
BETWEEN = 3 * 2  # tokens of the empty lines behind three documents
TEXTS = [f"Document {i}: " + f"fact {i * 7} holds for part {i}. " * 8 for i in range(4)]


@pytest.fixture
def empty(fresh: Served) -> Served:
    """The shared server with nothing cached at all."""
    assert fresh.engine.chunk_filler is not None
    fresh.engine.chunk_filler.reuse.store.clear()
    return fresh


def ask(
    served: Served, order: list[int], *, ragboost: dict[str, Any] | None, question: str = "Which?"
) -> Any:
    content = "".join(TEXTS[i] + "\n\n" for i in order) + question
    chunks, at = [], 0
    for i in order:
        chunks.append([1, at, at + len(TEXTS[i])])
        at += len(TEXTS[i]) + 2
    extra = {} if ragboost is None else {"ragboost": {**ragboost, "chunks": chunks}}
    return served.client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": content},
        ],
        max_tokens=4,
        temperature=0,
        extra_body=extra,
    )


def sources(usage: Any) -> tuple[int, int, int, int]:
    found = usage.model_extra["ragboost"]
    names = ("exact", "reused", "recomputed", "computed")
    counts = tuple(found[name] for name in names)
    assert sum(counts) == usage.prompt_tokens
    assert found["exact"] == usage.prompt_tokens_details.cached_tokens
    return counts


def test_usage_says_where_every_prompt_token_came_from(empty: Served) -> None:
    cold = sources(ask(empty, [0, 1, 2], ragboost=APPROX).usage)
    warm = sources(ask(empty, [2, 0, 1], ragboost=APPROX, question="And why?").usage)
    assert cold[:3] == (0, 0, 0)
    exact, approximate, recomputed, computed = warm
    assert exact < 20, "the system prompt"
    assert recomputed == round(0.2 * (approximate + recomputed))
    assert approximate > 120
    assert computed - BETWEEN < 20, "the question and what the template puts behind it"


def test_a_request_that_does_not_ask_is_exact_and_says_nothing(empty: Served) -> None:
    plain = ask(empty, [2, 0, 1], ragboost=None)
    empty.engine.reset_prefix_cache().result()
    ask(empty, [0, 1, 2], ragboost=APPROX)
    for ragboost in (None, {"reuse": "exact"}, {}):
        empty.engine.reset_prefix_cache().result()
        again = ask(empty, [2, 0, 1], ragboost=ragboost)
        assert again.choices[0].message.content == plain.choices[0].message.content
        if ragboost:  # which stores its chunks, as vLLM and SGLang do
            assert sources(again.usage)[1:3] == (0, 0)
        else:
            assert "ragboost" not in again.usage.model_extra


@pytest.mark.parametrize("policy", sorted(MEASURED))
def test_a_policy_that_needs_measurements_reuses_no_chunk_without(
    empty: Served, policy: str
) -> None:
    ask(empty, [0, 1, 2], ragboost={"reuse": "exact"})
    empty.engine.reset_prefix_cache().result()
    assert sources(ask(empty, [2, 0, 1], ragboost=APPROX).usage)[1] > 0
    empty.engine.reset_prefix_cache().result()
    named = {"reuse": {"policy": policy, "ratio": 0.2}}
    assert sources(ask(empty, [1, 2, 0], ragboost=named).usage)[1:3] == (0, 0)


def test_a_stream_carries_the_same_usage(empty: Served) -> None:
    assert empty.engine.chunk_filler is not None
    ask(empty, [0, 1, 2], ragboost=APPROX)
    prompt = "S. " + TEXTS[2] + TEXTS[0]
    spans = [[3, 3 + len(TEXTS[2])], [3 + len(TEXTS[2]), len(prompt)]]
    stream = empty.client.completions.create(
        model=MODEL,
        prompt=prompt + " Which?",
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ragboost": {"reuse": "approx", "chunks": spans}},
    )
    usage = [event.usage for event in stream][-1]
    assert sum(sources(usage)) == usage.prompt_tokens


@pytest.mark.parametrize("number", [0, 1, 3, 4096])
def test_bought_chunks_are_no_approximate_ones(empty: Served, number: int) -> None:
    ask(empty, [0, 1, 2], ragboost=APPROX)
    empty.engine.reset_prefix_cache().result()

    answer = ask(empty, [2, 0, 1], ragboost={**APPROX, "exact_chunks": number})

    _, reused, recomputed, computed = sources(answer.usage)
    assert (reused + recomputed == 0) == (number >= 3)
    empty.engine.reset_prefix_cache().result()
    more = sources(ask(empty, [2, 0, 1], ragboost=APPROX).usage)
    assert computed >= more[3] + 50 * min(number, 3), "a document has more tokens"


def test_documents_of_the_chat_template_are_chunks(empty: Served) -> None:
    def ask_about(order: list[int]) -> Any:
        return empty.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Which?"}],
            max_tokens=2,
            extra_body={
                "documents": [{"title": f"Doc {i}", "text": TEXTS[i]} for i in order],
                "ragboost": {"reuse": "approx"},
            },
        ).usage

    assert sources(ask_about([0, 1, 2]))[:3] == (0, 0, 0)
    exact, approximate, recomputed, computed = sources(ask_about([2, 1, 0]))
    assert exact < 20, "the system prompt"
    assert approximate + recomputed > 150
    assert computed - BETWEEN < 20 + 16, "the question, and less than a block before the documents"


def test_a_later_turn_finds_chunks_that_the_first_turns_system_prompt_precedes(
    empty: Served,
) -> None:
    ask(empty, [0, 1, 2], ragboost=APPROX)
    usage = empty.client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello!"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": TEXTS[1] + "\n\nWhich?"},
        ],
        max_tokens=2,
        extra_body={"ragboost": {"reuse": "approx", "chunks": [[3, 0, len(TEXTS[1])]]}},
    ).usage
    # The template's own head of the first user message is text between system prompt and chunk.
    assert sum(sources(usage)) == usage.prompt_tokens


def test_tenants_do_not_share_stored_chunks(empty: Served) -> None:
    mine, other = {**APPROX, "tenant": "a"}, {**APPROX, "tenant": "b"}
    ask(empty, [0, 1, 2], ragboost=mine)

    _, approximate, recomputed, _ = sources(ask(empty, [2, 1, 0], ragboost=other).usage)
    assert approximate + recomputed == 0
    _, approximate, recomputed, _ = sources(ask(empty, [1, 2, 0], ragboost=mine).usage)
    assert approximate + recomputed > 0


@pytest.mark.parametrize(
    ("ragboost", "param"),
    [
        (3, "ragboost"),
        ({"tenant": "x" * 300}, "ragboost.tenant"),
        ({"documents": []}, "ragboost.documents"),
        ({"reuse": "some"}, "ragboost.reuse"),
        ({"reuse": {"part": 1}}, "ragboost.reuse.part"),
        ({"reuse": {"policy": "best"}}, "ragboost.reuse.policy"),
        ({"reuse": {"policy": ["a3"]}}, "ragboost.reuse.policy"),
        ({"reuse": {"policy": "oracle"}}, "ragboost.reuse.policy"),
        ({"measure": 1}, "ragboost.measure"),
        ({"reuse": {"ratio": 2}}, "ragboost.reuse.ratio"),
        ({"reuse": {"ratio": True}}, "ragboost.reuse.ratio"),
        ({"chunks": 3}, "ragboost.chunks"),
        ({"chunks": [[1, 2]]}, "ragboost.chunks[0]"),
        ({"chunks": [[0, 2, 1]]}, "ragboost.chunks"),
        ({"chunks": [[0, 0, 2], [0, 1, 3]]}, "ragboost.chunks"),
        ({"chunks": [[0, 0, 99]]}, "ragboost.chunks"),
        ({"chunks": [[5, 0, 2]]}, "ragboost.chunks"),
        ({"chunks": [[0, -1, 2]]}, "ragboost.chunks[0][1]"),
        ({"exact_chunks": -1}, "ragboost.exact_chunks"),
        ({"exact_chunks": 1.5}, "ragboost.exact_chunks"),
        ({"exact_chunks": 1.0}, "ragboost.exact_chunks"),
        ({"exact_chunks": True}, "ragboost.exact_chunks"),
        ({"exact_chunks": "2"}, "ragboost.exact_chunks"),
        ({"exact_chunks": [1]}, "ragboost.exact_chunks"),
        ({"exact_chunks": 10**400}, "ragboost.exact_chunks"),
    ],
)
def test_a_bad_object_is_refused_and_the_field_named(
    served: Served, ragboost: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi there"}],
            extra_body={"ragboost": ragboost},
        )
    assert caught.value.param == param


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs", "echo"])
def test_log_probabilities_of_the_prompt_are_refused(served: Served, field: str) -> None:
    """Tokens whose KV was reused have none."""
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.completions.create(
            model=MODEL,
            prompt="Hi",
            extra_body={field: True if field == "echo" else 1, "ragboost": APPROX},
        )
    assert caught.value.param == field


def test_a_route_and_metrics_tell_of_reuse(empty: Served) -> None:
    told = httpx.get(f"{empty.url}/chunk_reuse").json()
    assert told["is_possible"] is True
    assert (told["default"], told["policy"], told["ratio"]) == ("exact", "anchored", 0.15)
    assert set(told["policies"]) == set(POLICIES)
    ask(empty, [0, 1], ragboost=APPROX)
    text = httpx.get(f"{empty.url}/metrics").text
    assert 'ragboost_engine_reuse_prompt_tokens_total{source="computed"}' in text
    assert "ragboost_engine_chunks_stored_total" in text


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_the_engine(empty: Served, is_stream: bool) -> None:
    body = {
        "prompt": [*range(10, 900)],
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": is_stream,
        "ragboost": {"reuse": "approx", "chunks": [[10, 400], [400, 800]]},
    }
    leave_while_running(empty, body)


def test_a_model_without_reuse_serves_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = GPT2Config(vocab_size=4096, n_embd=32, n_layer=2, n_head=2, n_positions=256)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    app = create_engine_app(EngineSettings(model=tmp_path, chunks={"reuse": "approx"}))
    assert "chunks cannot be reused with this model: GPT2LMHeadModel" in caplog.text
    with serve_in_thread(app) as url:
        body: dict[str, Any] = {"prompt": "Hello you", "max_tokens": 2}
        plain = httpx.post(f"{url}/v1/completions", json=body)
        assert plain.status_code == 200, "the default cannot be kept, and is not asked for"
        assert "ragboost" not in plain.json()["usage"]
        answer = httpx.post(f"{url}/v1/completions", json={**body, "ragboost": APPROX})
        assert answer.status_code == 400
        assert "GPT2LMHeadModel has 0 rotary embeddings" in answer.json()["error"]["message"]
        told = httpx.get(f"{url}/chunk_reuse").json()
        assert told["is_possible"] is False
        assert told["refusal"] in answer.json()["error"]["message"]


def test_a_failed_self_test_turns_reuse_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ragboost.chunk_cache.model.adapter import ModelAdapter

    exact = ModelAdapter.forward

    def wrong(self: ModelAdapter, *args: Any, **named: Any) -> torch.Tensor:
        logits = exact(self, *args, **named)
        return logits + torch.arange(logits.shape[-1])

    monkeypatch.setattr(ModelAdapter, "forward", wrong)
    loaded = load_model(SETTINGS)
    assert loaded.adapter is None
    assert "chunk reuse stays off for this model" in (loaded.reuse_refusal or "")
    assert "full_error" in caplog.text


def test_a_calibration_decides_policy_and_ratio_for_its_model_alone(tmp_path: Path) -> None:
    loaded, path = load_model(SETTINGS), tmp_path / "calibration.json"
    assert loaded.adapter is not None
    Calibration(shape=shape_digest(loaded.adapter), policy="mean-layers", ratio=0.25).write(
        path, expected={}
    )
    settings = SETTINGS.model_copy(update={"chunks": {"calibration": str(path)}})

    with serve_in_thread(create_engine_app(settings)) as url:
        said = httpx.get(f"{url}/chunk_reuse").json()

    assert (said["policy"], said["ratio"]) == ("mean-layers", 0.25)
    both = settings.model_copy(update={"chunks": {**settings.chunks, "ratio": 0.3}})
    with pytest.raises(ConfigError, match=r"engine\.chunks: `calibration` decides `ratio`"):
        create_engine_app(both)
    Calibration(shape="of another model", policy="epic", ratio=0.25).write(path, expected={})
    with pytest.raises(ConfigError, match="made for another model"):
        create_engine_app(settings)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("policy", "best", r"engine\.chunks: policy must be one of full, reuse"),
        ("ratio", 2, r"engine\.chunks: ratio must be less than or equal to 1"),
        ("directroy", "kv", r"engine\.chunks: directroy is unknown"),
        (
            "public_key",
            "secret",
            r"engine\.chunks\.public_key is a setting of vLLM and SGLang only",
        ),
    ],
)
def test_a_setting_of_reuse_that_is_refused(name: str, value: Any, problem: str) -> None:
    settings = SETTINGS.model_copy(update={"chunks": {name: value}})
    with pytest.raises(ConfigError, match=problem):
        create_engine_app(settings)
