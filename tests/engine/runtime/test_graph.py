"""Graph requests over HTTP, with the official SDK against real engines on loopback."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.engine import builtin, create_engine_app
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.graph.conversation import PromptWriter, with_facts
from ragboost.graph.depcache import DepCache, TokenPool
from ragboost.graph.layout import LinearNode
from ragboost.graph.request import GraphFields, path_text
from ragboost.proxy.serving import serve_in_thread
from tests.engine.conftest import MODEL, SETTINGS, Served

PATHS = [
    ["Elon Musk", "founded", "SpaceX", "located in", "Texas"],
    ["Elon Musk", "founded", "SpaceX", "launched", "Falcon 9"],
    ["Elon Musk", "born in", "Pretoria"],
    ["Ada Lovelace", "wrote", "notes", "about", "the analytical engine"],
]
QUESTION = "Where is the company of Elon Musk located?"


@pytest.fixture(scope="module")
def dependency() -> Iterator[Served]:
    """An engine that is told to use dependency attention on its untuned model."""
    settings = SETTINGS.model_copy(
        update={
            "graph_attention": "dependency",
            "kv_events_endpoint": None,
        }
    )
    app = create_engine_app(settings)
    with (
        serve_in_thread(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Served(url, app, client)


def ask(served: Served, graph: dict[str, Any], text: str = QUESTION, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}],
        temperature=0,
        max_tokens=6,
        extra_body={"ragboost": {"graph": graph}, **fields.pop("extra", {})},
        **fields,
    )


def reused(answer: Any) -> int:
    count: int = answer.usage.model_extra["ragboost"]["reused"]
    return count


def test_an_untuned_model_reads_the_paths_written_out(fresh: Served) -> None:
    answer = ask(fresh, {"paths": PATHS})

    lines = [
        "Elon Musk -founded-> SpaceX -located in-> Texas",
        "Elon Musk -founded-> SpaceX -launched-> Falcon 9",
        "Elon Musk -born in-> Pretoria",
        "Ada Lovelace -wrote-> notes -about-> the analytical engine",
    ]
    plain = fresh.client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Facts:\n" + "\n".join(lines) + f"\n\n{QUESTION}"},
        ],
        temperature=0,
        max_tokens=6,
    )
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens
    assert plain.usage.prompt_tokens_details.cached_tokens > 0
    assert "ragboost" not in (answer.usage.model_extra or {})


def test_dependency_attention_on_an_untuned_model_has_to_be_allowed(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="not tuned"):
        ask(served, {"paths": PATHS, "attention": "dependency"})


def test_the_answer_is_that_of_the_library(dependency: Served) -> None:
    answer = ask(dependency, {"paths": PATHS})

    tokenizer = ChatTokenizer(builtin.build_tokenizer())
    prompt = PromptWriter(tokenizer).prompt(
        GraphFields(paths=PATHS).relation_paths(),
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
    )
    depcache = DepCache(ModelAdapter(builtin.build_model("tiny", seed=0)))
    kv = depcache.compute_depkv(prompt)
    tokens = depcache.generate_with_depkv(kv, max_tokens=6)
    assert answer.choices[0].message.content == tokenizer.decode(tokens)
    assert answer.usage.prompt_tokens == len(kv.layout)


def test_another_question_reuses_the_subgraph(dependency: Served) -> None:
    ask(dependency, {"paths": PATHS}, extra={"cache_salt": "one"})
    other = {"paths": [*PATHS[2:], ["Elon Musk", "founded", "SpaceX", "located in", "Texas"]]}

    again = ask(dependency, other, "Who wrote notes about engines?", extra={"cache_salt": "one"})
    apart = ask(dependency, other, "Who wrote notes about engines?", extra={"cache_salt": "two"})

    assert reused(apart) == 0
    used = again.usage.model_extra["ragboost"]
    assert used["reused"] > 30
    assert used["computed"] == again.usage.prompt_tokens - used["reused"]
    assert again.choices[0].message.content == apart.choices[0].message.content


def test_nothing_of_a_graph_enters_the_prefix_cache(dependency: Served) -> None:
    messages = [{"role": "user", "content": QUESTION}] * 2
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 4}
    url = f"{dependency.url}/v1/chat/completions"
    before = httpx.post(url, json=body).json()
    dependency.engine.reset_prefix_cache().result()
    for _ in range(2):
        answer = httpx.post(url, json={**body, "ragboost": {"graph": {"paths": PATHS}}}).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    after = httpx.post(url, json=body).json()

    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert after["choices"][0]["message"] == before["choices"][0]["message"]


def test_graphs_stream_beside_other_requests(dependency: Served) -> None:
    alone = ask(dependency, {"paths": PATHS}).choices[0].message.content

    def stream(number: int) -> str:
        if number % 2:
            text = f"Tell me about {number}. " * 30
            done = dependency.client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=12
            )
            return str(done.usage.completion_tokens)  # type: ignore[union-attr]
        parts = ask(dependency, {"paths": PATHS}, stream=True)
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(stream, range(6)))
    assert answers[::2] == [alone] * 3


def test_a_graph_is_computed_in_pieces_beside_the_steps_of_other_requests(
    dependency: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [[f"entity {i}", "is near", f"place {i * 7}", "in", f"land {i}"] for i in range(80)]
    graph = {"paths": paths}
    alone = ask(dependency, graph)
    pieces: list[int] = []
    compute = ModelAdapter.forward

    def note_rows(adapter: ModelAdapter, tokens: list[int], *args: Any, **options: Any) -> Any:
        pieces.append(len(tokens))
        return compute(adapter, tokens, *args, **options)

    monkeypatch.setattr(ModelAdapter, "forward", note_rows)
    beside = ask(dependency, graph, extra={"cache_salt": "other"})

    limit = SETTINGS.max_step_tokens
    assert reused(beside) == 0
    assert sum(pieces) > 4 * limit
    assert max(pieces) <= limit
    assert beside.choices[0].message == alone.choices[0].message


def test_a_graph_that_the_memory_does_not_suffice_for_fails_alone(
    dependency: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ask(dependency, {"paths": PATHS[:3]}).choices[0].message.content

    def fail(*_args: Any, **_options: Any) -> None:
        raise MemoryError("simulated")

    for owner, name in ((DepCache, "_compute"), (TokenPool, "store")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(openai.InternalServerError, match="the engine failed"):
                ask(dependency, {"paths": [*PATHS, ["a", name, "b"]]})
        again = ask(dependency, {"paths": PATHS[:3]})
        assert again.choices[0].message.content == good


def test_written_out_subgraphs_are_reused_without_tuning() -> None:
    settings = SETTINGS.model_copy(
        update={
            "graph_attention": "subgraphs",
            "kv_events_endpoint": None,
        }
    )
    with (
        serve_in_thread(create_engine_app(settings)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        served = Served(url, None, client)  # type: ignore[arg-type]
        first = ask(served, {"paths": PATHS[:3]})
        turned = ask(served, {"paths": [PATHS[3], *PATHS[:3]]})
        apart = ask(served, {"paths": [PATHS[3], *PATHS[:3]]}, extra={"cache_salt": "new"})
        with pytest.raises(openai.BadRequestError, match="subgraphs"):
            ask(served, {"paths": PATHS, "attention": "dependency"})
    assert reused(turned) > reused(first) == reused(apart) == 0


def test_written_out_subgraphs_are_the_text_of_ordinary_attention() -> None:
    tokenizer = ChatTokenizer(builtin.build_tokenizer())
    messages = [{"role": "user", "content": QUESTION}]
    paths = GraphFields(paths=[PATHS[0], PATHS[3], PATHS[1]]).relation_paths()
    writer = PromptWriter(tokenizer)

    nodes = writer.prompt(paths, messages, is_tree=False).nodes

    tokens = [token for node in nodes if isinstance(node, LinearNode) for token in node.tokens]
    ordered = [paths[0], paths[2], paths[1]]
    written = tokenizer.render_chat(with_facts(messages, path_text(ordered)))
    assert len(nodes) == 4
    assert tokenizer.decode(tokens, skip_special_tokens=False) == written


def test_a_graph_needs_a_user_message_and_no_documents(dependency: Served) -> None:
    url = f"{dependency.url}/v1"
    graph = {"ragboost": {"graph": {"paths": PATHS}}}
    for path, body in (
        ("chat/completions", {"messages": [{"role": "system", "content": "x"}]}),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "documents": [{"text": "y"}]},
        ),
        ("completions", {"prompt": "x"}),
    ):
        answer = httpx.post(f"{url}/{path}", json={**body, **graph})
        assert answer.status_code == 400, answer.text
