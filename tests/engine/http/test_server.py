"""The HTTP surface, with the official SDK against a real server on loopback."""

import itertools
import json
import threading
from typing import Any

import httpx
import openai
import pytest
import torch

from tests.engine.conftest import MODEL, Served, serve_engine
from tests.engine.leaving import leave_while_running, wait_until_idle
from tests.kv_integrity import check_blocks
from tests.metrics import read_metric

DOCUMENTS = [
    {"title": "Lease", "text": "The lease was signed by Ada Lovelace in the spring. " * 6},
    {"title": "Deed", "text": "The deed names Charles Babbage as the owner of the house. " * 6},
]


def ask(served: Served, text: str, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        temperature=0,
        max_tokens=fields.pop("max_tokens", 4),
        **fields,
    )


def cached(answer: Any) -> int:
    count: int = answer.usage.prompt_tokens_details.cached_tokens
    return count


def test_second_identical_request_reports_cached_tokens(fresh: Served) -> None:
    text = "Who signed the lease? " * 20
    first, second = ask(fresh, text), ask(fresh, text)
    assert cached(first) == 0
    expected = (first.usage.prompt_tokens - 1) // 16 * 16
    assert cached(second) == expected > 0
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.usage.completion_tokens == 4
    assert first.choices[0].finish_reason == "length"


def test_next_turn_hits_the_whole_conversation(fresh: Served) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me about leases. " * 10}]
    sizes = []
    for _ in range(3):
        answer = fresh.client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=24
        )
        sizes.append((answer.usage.prompt_tokens, cached(answer)))
        messages += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "And then?"},
        ]
    for (before, _), (_, hit) in itertools.pairwise(sizes):
        assert hit >= before // 16 * 16


def test_stream_gives_the_same_text_and_usage(fresh: Served) -> None:
    whole = ask(fresh, "Stream this.", max_tokens=30)
    chunks = list(
        ask(
            fresh,
            "Stream this.",
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 30
    assert cached(chunks[-1]) == 0 or cached(chunks[-1]) % 16 == 0
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) == 31, "one event per token, then usage"


def test_stream_without_usage_has_no_usage_field(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 3}
    lines = httpx.post(f"{served.url}/v1/chat/completions", json=body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all("usage" not in json.loads(line[6:]) for line in lines[:-2])


def test_text_and_token_prompts_are_the_same_request(fresh: Served) -> None:
    text = "The lease was signed by " * 10
    ids = httpx.post(f"{fresh.url}/tokenize", json={"prompt": text}).json()["tokens"]
    prompts: list[Any] = [text, ids, [text], [ids]]
    answers = [
        fresh.client.completions.create(model=MODEL, prompt=p, temperature=0) for p in prompts
    ]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert answers[0].usage is not None
    assert answers[0].usage.completion_tokens == 16, "OpenAI's default"
    assert [cached(answer) > 0 for answer in answers] == [False, True, True, True]
    pieces = fresh.client.completions.create(model=MODEL, prompt=ids, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == answers[0].choices[0].text


def test_equal_leading_documents_are_reused(fresh: Served) -> None:
    first = ask(fresh, "Who signed?", extra_body={"documents": DOCUMENTS})
    body = {"chat_template_kwargs": {"documents": DOCUMENTS}}
    other_question = ask(fresh, "Who owns the house?", extra_body=body)
    reordered = ask(fresh, "Who signed?", extra_body={"documents": DOCUMENTS[::-1]})
    assert cached(first) == 0
    assert cached(other_question) > 100
    assert cached(reordered) < 16


def test_tokenize_counts_what_a_chat_request_uses(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Who?"}], "documents": DOCUMENTS}
    reply = httpx.post(f"{served.url}/tokenize", json=body).json()
    answer = ask(served, "Who?", extra_body={"documents": DOCUMENTS})
    assert reply["count"] == len(reply["tokens"]) == answer.usage.prompt_tokens
    assert reply["max_model_len"] == 2048
    text = served.app.state.loaded.tokenizer.decode(reply["tokens"], skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    assert DOCUMENTS[1]["text"] in text


def test_cache_salt_separates_tenants(fresh: Served) -> None:
    text = "A secret. " * 40
    ask(fresh, text, extra_body={"cache_salt": "a"})
    assert cached(ask(fresh, text, extra_body={"cache_salt": "b"})) == 0
    assert cached(ask(fresh, text)) == 0
    assert cached(ask(fresh, text, extra_body={"cache_salt": "a"})) > 0


def test_stop_string_ends_the_answer_in_front_of_it(served: Served) -> None:
    text = ask(served, "Go.", max_tokens=40).choices[0].message.content
    stop = text[20:26]
    answer = ask(served, "Go.", max_tokens=40, stop=[stop, "never"])
    streamed = ask(served, "Go.", max_tokens=40, stop=stop, stream=True)
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert "".join(c.choices[0].delta.content for c in streamed) == text[: text.index(stop)]
    wait_until_idle(served.engine)


def test_seed_repeats_a_sampled_answer(served: Served) -> None:
    def sampled(seed: int) -> Any:
        answer = served.client.completions.create(
            model=MODEL, prompt="Dice: ", temperature=1.2, top_p=0.95, seed=seed, max_tokens=20
        )
        return answer.choices[0].text

    assert sampled(1) == sampled(1) != sampled(2)


def test_errors_have_the_right_class(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        served.client.chat.completions.create(model="gpt-x", messages=[])
    with pytest.raises(openai.BadRequestError, match="2048 tokens at most") as caught:
        ask(served, "word " * 4000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="5000 tokens were asked for"):
        ask(served, "word", max_tokens=5000)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"stop": [1]}, "stop[0]"),
        ({"seed": True}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0]"),
        ({"documents": ["x"]}, "documents[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"top_k": 5}, "top_k"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"stop_token_ids": [7]}, "stop_token_ids"),
        ({"guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ],
)  # fmt: skip
def test_bad_field_is_named(served: Served, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **fields}
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_options_that_ask_for_what_the_engine_does_anyway_are_served(served: Served) -> None:
    neutral = {"tool_choice": "auto", "functions": [], "top_k": -1, "min_p": 0.0, "n": 1}
    assert ask(served, "x", max_tokens=1, extra_body=neutral).usage is not None


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_request_that_the_memory_does_not_suffice_for_is_a_500_and_the_next_one_is_served(
    fresh: Served, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    forward = fresh.engine.runner.forward

    def fail_if_long(token_ids: list[int], *args: Any, **options: Any) -> Any:
        if len(token_ids) > 100:
            raise torch.OutOfMemoryError("simulated")
        return forward(token_ids, *args, **options)

    monkeypatch.setattr(fresh.engine.runner, "forward", fail_if_long)
    with pytest.raises(openai.InternalServerError, match="the engine failed") as caught:
        ask(fresh, "word " * 300, stream=is_stream)
    assert caught.value.code == "internal_error"
    assert ask(fresh, "word").choices[0].message.content is not None
    assert httpx.get(f"{fresh.url}/health").status_code == 200


def test_a_field_of_another_type_is_refused_in_the_words_of_json(served: Served) -> None:
    body = {"prompt": "a", "stream_options": True}
    reply = httpx.post(f"{served.url}/v1/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "stream_options must be an object, got true"


@pytest.mark.parametrize("prompt", [None, "", [], [[]], ["a", "b"], [-1], [4096], [1.5], {}])
def test_bad_prompt_is_refused(served: Served, prompt: Any) -> None:
    reply = httpx.post(f"{served.url}/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("prompt")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_bad_json_is_a_400(served: Served, body: bytes) -> None:
    reply = httpx.post(f"{served.url}/v1/chat/completions", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


def test_odd_but_valid_bodies_are_served(served: Served) -> None:
    url = f"{served.url}/v1/chat/completions"
    surrogate = b'{"messages":[{"role":"user","content":"lone \\ud800"}],"max_tokens":1,"rid":7}'
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "stop": None}
    assert httpx.post(url, content=surrogate).status_code == 200
    assert httpx.post(url, json=body).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        b'"ragboost":{"\\ud800":1}',
        b'"ragboost":{"graph":{"paths":[["\\ud800"]],"\\ud800":1}}',
        b'"stop":"\\ud800"',
        b'"cache_salt":"\\ud800"',
        b'"chat_template_kwargs":{"\\ud800":1,"tokenize":true}',
        b'"n":"\\ud800"',
    ],
)
def test_lone_surrogates_in_names_and_settings_are_a_400(served: Served, fields: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,' + fields + b"}"
    reply = httpx.post(f"{served.url}/v1/chat/completions", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"]


@pytest.mark.parametrize("field", [b'"tools"', b'"documents"', b'"chat_template_kwargs"'])
def test_a_field_that_is_nested_too_deeply_for_the_template_is_a_400(
    served: Served, field: bytes
) -> None:
    nested = b'{"a":' * 900 + b"1" + b"}" * 900
    value = nested if b"kwargs" in field else b"[" + nested + b"]"
    body = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,' + field + b":" + value
    reply = httpx.post(f"{served.url}/v1/chat/completions", content=body + b"}")
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ 1 / 0 }}", "the chat template failed"),
        ("{{ messages[0].content.x.y }}", "the chat template failed"),
        ("{{ '' }}", "messages has no tokens"),
        ("{% if %}", "the chat template failed"),
        ("{% for i in range(999999999) %}x{% endfor %}", "the chat template failed"),
    ],
)
def test_a_chat_template_that_fails_is_a_400(
    served: Served, monkeypatch: pytest.MonkeyPatch, template: str, problem: str
) -> None:
    monkeypatch.setattr(served.app.state.loaded.tokenizer._tokenizer, "chat_template", template)
    with pytest.raises(openai.BadRequestError, match=problem):
        ask(served, "x")


def test_tokens_beyond_the_models_vocabulary_are_a_400(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.app.state.service.prompts, "_vocab_size", 20)
    with pytest.raises(openai.BadRequestError, match=r"messages has token \d+ .* ends at 20"):
        ask(served, "x")


def test_unknown_routes_and_large_bodies_have_the_same_error_shape(served: Served) -> None:
    assert httpx.get(f"{served.url}/v1/nothing").json()["error"]["message"] == "Not Found"
    large = httpx.post(f"{served.url}/v1/completions", content=b"x" * (33 * 1024 * 1024))
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("is_stream", [False, True])
def test_full_engine_answers_503_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    monkeypatch.setattr(served.engine, "max_pending", 0)
    with pytest.raises(openai.InternalServerError, match="the engine is full") as caught:
        ask(served, "anyone?", stream=is_stream)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.code == "engine_overloaded"


def test_a_stopped_engine_does_not_ask_clients_to_try_again() -> None:
    with serve_engine() as own:
        own.engine.stop()
        with pytest.raises(openai.InternalServerError, match="the engine has stopped") as caught:
            ask(own, "anyone?")
    assert caught.value.code == "engine_stopped"
    assert "retry-after" not in caught.value.response.headers


@pytest.mark.parametrize("is_stream", [False, True])
def test_client_that_leaves_frees_the_engine(fresh: Served, is_stream: bool) -> None:
    body = {
        "prompt": list(range(5, 400)),
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": is_stream,
    }
    before = read_metric(fresh.url, "ragboost_engine_generation_tokens_total")
    leave_while_running(fresh, body)
    assert read_metric(fresh.url, "ragboost_engine_generation_tokens_total") - before < 1500
    cache = fresh.engine.store.cache
    check_blocks(cache)
    assert cache.evict(len(cache)) > 0
    assert len(cache) == 0, "nothing is held any more"


def test_requests_in_parallel_all_answer(fresh: Served) -> None:
    answers: dict[int, Any] = {}

    def run(i: int) -> None:
        answers[i] = ask(fresh, f"Question {i % 4}: " + "why? " * 30, max_tokens=8)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {i: answer.choices[0].message.content for i, answer in answers.items()}
    assert len(texts) == 12
    assert all(texts[i] == texts[i % 4] for i in texts)
    assert sum(cached(answer) for answer in answers.values()) > 0


def test_metrics_health_and_models(fresh: Served) -> None:
    def metric(name: str) -> float:
        return read_metric(fresh.url, f"ragboost_engine_{name}")

    queries, hits = metric("prefix_cache_queries_total"), metric("prefix_cache_hits_total")
    answers = [ask(fresh, "Count me. " * 20) for _ in range(2)]
    asked = sum(answer.usage.prompt_tokens for answer in answers)
    assert metric("prefix_cache_queries_total") - queries == asked
    assert metric("prefix_cache_hits_total") - hits == cached(answers[1])
    assert metric("num_requests_running") == 0
    assert metric("kv_cache_capacity_tokens") == 4096
    assert 0 < metric("kv_cache_usage_perc") < 1
    assert httpx.get(f"{fresh.url}/health").status_code == 200
    assert [model.id for model in fresh.client.models.list()] == [MODEL]


def test_reset_prefix_cache_forgets_everything(fresh: Served) -> None:
    ask(fresh, "Forget me. " * 20)
    assert httpx.post(f"{fresh.url}/reset_prefix_cache").status_code == 200
    assert cached(ask(fresh, "Forget me. " * 20)) == 0
