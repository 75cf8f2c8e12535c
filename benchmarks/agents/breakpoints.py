"""What cache breakpoints save at hosted APIs, in money, by simulation of their documented rules.

    python -m benchmarks.agents.breakpoints --data ../shared/data --json

Replays MultiHop-RAG (independent questions), MT-RAG (conversations) and tau-bench (agents) with
arrival times drawn at three densities. Calls no API.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command import make_parser
from benchmarks.datasets.conversations import Chat, read_questions, read_traces
from benchmarks.datasets.retrieval import read_rows
from ragboost import Booster
from ragboost.config import PriceSettings
from ragboost.hosted.cache_marks import CacheMarker, MarkStyle
from tests.fakes.hosted_caches import AutomaticCache, BreakpointCache

Body = dict[str, Any]
_RULES = "Answer from the documents only, and name them. " * 24  # about 280 tokens
_GAPS_S = (1.0, 10.0, 60.0)  # mean time between independent questions or new conversations
_THINK_S, _SPREAD = 45.0, 1.2  # median of the time between turns, and its log's deviation
_STEP_S = 6.0  # mean time between an agent's steps


class Arrival(NamedTuple):
    """A request without marks, the time at which it arrives, and its documents' context."""

    time: float
    body: Body
    context: Any = None


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--input", type=float, default=3.0, help="price of a million tokens")
    parser.add_argument("--limit", type=int, help="questions, conversations or traces of each set")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    results = {
        f"{name}, {gap:g} s": _measure(make, gap, options)
        for name, make in WORKLOADS.items()
        for gap in _GAPS_S
    }
    if options.json:
        print(json.dumps({"price": options.input, "seed": options.seed, "workloads": results}))
        return
    for name, arms in results.items():
        print(name)
        for arm, figures in arms.items():
            print(f"  {arm:32} {figures['per_1000']:9.3f} {figures['relative']:7.3f}")


def _measure(
    make: Callable[..., list[Arrival]], gap: float, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(options.seed)
    arrivals = make(options.data, gap, options.limit, rng)
    price = PriceSettings(model="m", input=options.input)
    results = {}
    for arm, run in ARMS.items():
        cost, bill = run(arrivals, price)
        results[arm] = {"per_1000": 1000 * cost / len(arrivals), **vars(bill)}
    for arm, figures in results.items():
        base = results[f"{arm.partition(':')[0]}: none"]["per_1000"]
        figures["relative"] = figures["per_1000"] / base
    return results


def _independent(
    data: Path, gap: float, limit: int | None, rng: np.random.Generator
) -> list[Arrival]:
    folder, booster = data / "multihoprag_evidence", Booster()
    texts = {row["id"]: row["text"] for row in read_rows(folder, "corpus_padded1024.jsonl*")}
    questions = {row["id"]: row["question"] for row in read_rows(folder, "queries.jsonl*")}
    rows = list(read_rows(folder, "retrieved_dense.jsonl*"))[:limit]
    arrivals, now = [], 0.0
    for row in rows:
        now += float(rng.exponential(gap))
        documents = [{"id": name, "text": texts[name]} for name in row["doc_ids"][:10]]
        context = booster.boost(questions[row["id"]], documents)
        message = _user([each.text for each in context.documents], questions[row["id"]])
        arrivals.append(Arrival(now, _body([message]), context))
    return arrivals


def _conversations(
    data: Path, gap: float, limit: int | None, rng: np.random.Generator
) -> list[Arrival]:
    chats = read_questions(data / "mtrag", "dense", top=10)[:limit]
    booster = Booster()

    def think() -> float:
        return float(_THINK_S * np.exp(rng.normal(0.0, _SPREAD)))

    def chat_arrivals(chat: Chat, start: float) -> Iterator[Arrival]:
        messages: list[Body] = []
        seen: set[str] = set()
        for new, documents, answer in chat.steps:
            fresh = [each for each in documents if each["id"] not in seen]
            seen.update(each["id"] for each in fresh)
            context = None
            texts = [each["text"] for each in fresh]
            if fresh and not messages:
                context = booster.boost(new[-1]["content"], fresh)
                texts = [each.text for each in context.documents]
            messages = [*messages, _user(texts, new[-1]["content"])]
            yield Arrival(start, _body(messages), context)
            messages = [*messages, {"role": "assistant", "content": answer["content"] or "."}]
            start += think()

    return _interleaved(chats, chat_arrivals, 10 * gap, rng)


def _agents(data: Path, gap: float, limit: int | None, rng: np.random.Generator) -> list[Arrival]:
    chats = read_traces(data / "taubench_airline_traces")[:limit]

    def chat_arrivals(chat: Chat, start: float) -> Iterator[Arrival]:
        system = ""
        messages: list[Body] = []
        for new, _, answer in chat.steps:
            for message in new:
                if message["role"] == "system":
                    system = message["content"]
                else:
                    messages = [*messages, _as_anthropic(message)]
            yield Arrival(start, _body(messages, system=system))
            messages = [*messages, _as_anthropic(answer)]
            start += float(rng.exponential(_STEP_S))

    return _interleaved(chats, chat_arrivals, 10 * gap, rng)


def _interleaved(
    chats: Sequence[Chat],
    arrivals: Callable[[Chat, float], Iterator[Arrival]],
    gap: float,
    rng: np.random.Generator,
) -> list[Arrival]:
    starts = np.cumsum(rng.exponential(gap, len(chats)))
    made = [list(arrivals(chat, float(start))) for chat, start in zip(chats, starts, strict=True)]
    return sorted(itertools.chain.from_iterable(made), key=lambda each: each.time)


def _as_anthropic(message: Body) -> Body:
    if message["role"] == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": message["content"],
        }
        return {"role": "user", "content": [result]}
    if message.get("tool_calls"):
        blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
        for call in message["tool_calls"]:
            value = json.loads(call["function"]["arguments"])
            name = call["function"]["name"]
            blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": value})
        return {"role": "assistant", "content": blocks}
    return {"role": message["role"], "content": message["content"] or "."}


def _user(texts: Sequence[str], question: str) -> Body:
    return {
        "role": "user",
        "content": [{"type": "text", "text": text} for text in [*texts, question]],
    }


def _body(messages: list[Body], *, system: str = _RULES) -> Body:
    return {"model": "m", "system": system, "messages": messages}


def _none(body: Body, mark: Body) -> Body:
    return body


def _last(body: Body, mark: Body) -> Body:
    """Mark the last block of the last message."""
    return _marked_message(body, -1, -1, mark)


def _usual(body: Body, mark: Body) -> Body:
    """Mark the system prompt and the last message, as most frameworks do."""
    return {**_last(body, mark), "system": [{"type": "text", "text": body["system"], **mark}]}


def _always(body: Body, mark: Body) -> Body:
    """Mark the system prompt, the last block before the question, and the last message."""
    content = body["messages"][-1]["content"]
    if isinstance(content, list) and len(content) > 1:
        return _usual(_marked_message(body, -1, -2, mark), mark)
    return _usual(body, mark)


def _marked_message(body: Body, at: int, part: int, mark: Body) -> Body:
    messages = list(body["messages"])
    content = messages[at]["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[part] = {**blocks[part], **mark}
    messages[at] = {**messages[at], "content": blocks}
    return {**body, "messages": messages}


_FIXED: Mapping[str, Callable[[Body, Body], Body]] = {
    "none": _none,
    "last message": _last,
    "system, last message": _usual,
    "always": _always,
}
_ANTHROPIC = {"": 300.0, "5m": 300.0, "1h": 3600.0}
_EXPLICIT = {"": 1800.0}


def _anthropic() -> BreakpointCache:
    return BreakpointCache(_ANTHROPIC, lookback=20)


def _openai(*, implicit: bool = False) -> BreakpointCache:
    return BreakpointCache(_EXPLICIT, lookback=100_000, implicit=implicit)


def _same(body: Body) -> Body:
    return body


def _as_openai(body: Body) -> Body:
    """Put the system prompt into a message."""
    kept = {name: value for name, value in body.items() if name != "system"}
    system = {"role": "system", "content": body["system"]}
    return {**kept, "messages": [system, *body["messages"]]}


def _fixed_arm(
    make: Callable[[], BreakpointCache],
    change: Callable[[Body, Body], Body],
    mark: Body,
    shape: Callable[[Body], Body] = _same,
) -> Callable[..., Any]:
    def run(arrivals: Sequence[Arrival], price: PriceSettings) -> Any:
        cache = make()
        for each in arrivals:
            cache.send(shape(change(each.body, mark)), each.time)
        return _cost(cache.bill, price), cache.bill

    return run


def _expected_arm(
    make: Callable[[], BreakpointCache], style: MarkStyle, shape: Callable[[Body], Body] = _same
) -> Callable[..., Any]:
    def run(arrivals: Sequence[Arrival], price: PriceSettings) -> Any:
        cache, now = make(), 0.0
        marker = CacheMarker(style, [price], clock=lambda: now)
        for each in arrivals:
            now = each.time
            cache.send(dict(marker.mark(shape(each.body), each.context)), now)
        return _cost(cache.bill, price), cache.bill

    return run


def _automatic_arm(*, with_key: bool) -> Callable[..., Any]:
    def run(arrivals: Sequence[Arrival], price: PriceSettings) -> Any:
        cache, marker = AutomaticCache(), CacheMarker("openai", [price])
        for each in arrivals:
            body = _as_openai(each.body)
            cache.send(marker.mark(body, each.context) if with_key else body, each.time)
        return _cost(cache.bill, price), cache.bill

    return run


def _cost(bill: Any, price: PriceSettings) -> float:
    return float(
        bill.cost(price.input, read=price.cached_read, write=price.write, long_write=price.write_1h)
    )


_MARK = {"cache_control": {"type": "ephemeral"}}
_LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
_POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
ARMS: Mapping[str, Callable[..., Any]] = {
    **{f"anthropic: {name}": _fixed_arm(_anthropic, arm, _MARK) for name, arm in _FIXED.items()},
    "anthropic: always, 1 h": _fixed_arm(_anthropic, _always, _LONG),
    "anthropic: expected value": _expected_arm(_anthropic, "anthropic"),
    "openai 5.6: none": _fixed_arm(_openai, _none, {}, _as_openai),
    "openai 5.6: implicit": _fixed_arm(lambda: _openai(implicit=True), _none, {}, _as_openai),
    "openai 5.6: always": _fixed_arm(_openai, _always, _POINT, _as_openai),
    "openai 5.6: expected value": _expected_arm(_openai, "openai_breakpoints", _as_openai),
    "openai: none": _automatic_arm(with_key=False),
    "openai: key": _automatic_arm(with_key=True),
}
WORKLOADS: Mapping[str, Callable[..., list[Arrival]]] = {
    "multihoprag": _independent,
    "mtrag": _conversations,
    "taubench": _agents,
}


if __name__ == "__main__":
    main()
