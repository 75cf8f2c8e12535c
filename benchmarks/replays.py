"""What the end-to-end benchmark sends: requests alone in three ways, conversations in two.

Knows workloads and bodies. Does not know engines.
"""

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.served import Sample, Served
from ragboost.booster import Booster
from ragboost.types import Request

ALONE = ("plain", "boosted", "online")
TURNS = ("plain", "boosted")
STRETCHES = 20
AT_ONCE = 8  # conversations that go on at the same time
ANSWER_TOKENS = 8

Body = dict[str, Any]


class Step(NamedTuple):
    """A request to send; one that does not count only brings the cache into its state."""

    body: Body
    counts: bool = True


class Turn(NamedTuple):
    """One turn of a conversation, as it was answered in each way."""

    number: int
    samples: Mapping[str, Sample]


def replay_alone(
    served: Mapping[str, Served], requests: Sequence[Request], *, count: int, sample: str
) -> dict[str, Any]:
    """Send requests that stand alone: plain, planned as a batch, and boosted one by one.

    Args:
        served: an engine for each of ALONE.
        requests: the whole set.
        count: how many are measured.
        sample: `first`: the first ones, planned by themselves. `stretches`: STRETCHES runs of
            neighbours in the plan of the whole set, each sent behind the request that the plan puts
            before it; the other ways get the same requests in the order of the set.
    """
    if sample == "first":
        requests = requests[:count]
    plan = Booster().boost_batch(requests)
    planned, positions = [], []
    for start, end in stretches(len(requests), min(count, len(requests))):
        if start:
            planned.append(Step({"prompt": plan.contexts[start - 1].render()}, counts=False))
        planned += [Step({"prompt": plan.contexts[i].render()}) for i in range(start, end)]
        positions += plan.order[start:end]
    positions.sort()
    steps = {
        "plain": [Step(completion(requests[i], boost=False)) for i in positions],
        "boosted": planned,
        "online": [Step(completion(requests[i], boost=True)) for i in positions],
    }
    for way, step in in_turns(steps):
        send = served[way].measure if step.counts else served[way].prepare
        send("/v1/completions", step.body)
    figures: dict[str, Any] = {way: served[way].summary() for way in ALONE}
    return {
        "requests": len(positions),
        "of": len(requests),
        "sample": sample,
        **figures,
        **ratios(figures["plain"], figures["boosted"]),
        **{f"online_{name}": x for name, x in ratios(figures["plain"], figures["online"]).items()},
    }


def stretches(total: int, count: int) -> list[tuple[int, int]]:
    """Cut `count` of `total` positions out as equal runs that lie evenly; all as one run."""
    if count == total:
        return [(0, total)]
    num = min(STRETCHES, count)
    skipped = total - count
    starts = [count * i // num + skipped * (2 * i + 1) // (2 * num) for i in range(num)]
    lengths = [count * (i + 1) // num - count * i // num for i in range(num)]
    return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]


def in_turns(steps: Mapping[str, Sequence[Step]]) -> Iterator[tuple[str, Step]]:
    """One request of each way after another; what does not count comes with the next that does."""
    started = time.monotonic()
    left = {way: iter(rows) for way, rows in steps.items()}
    total = max(sum(step.counts for step in rows) for rows in steps.values())
    for i in range(total):
        for way, rows in left.items():
            for step in rows:
                yield way, step
                if step.counts:
                    break
        if i % 20 == 19:
            _progress(f"{i + 1} of {total}", started)


def replay_turns(
    served: Mapping[str, Served],
    conversations: Sequence[Sequence[Request]],
    *,
    count: int,
    max_prompt_tokens: int,
) -> dict[str, Any]:
    """Send conversations turn by turn, some at a time; both ways resend the history as it was sent.

    Args:
        served: an engine for each of TURNS.
        conversations: their turns.
        count: how many requests are sent.
        max_prompt_tokens: a conversation ends before a turn that would outgrow this.
    """
    waiting = iter(enumerate(conversations))
    running: list[Iterator[Turn]] = []
    turns: list[Turn] = []
    started = time.monotonic()
    while len(turns) < count:
        while len(running) < AT_ONCE and (new := next(waiting, None)):
            running.append(converse(served, *new, max_prompt_tokens=max_prompt_tokens))
        if not running:
            break
        conversation = running.pop(0)
        turn = next(conversation, None)
        if turn is not None:
            turns.append(turn)
            running.append(conversation)
            if len(turns) % 20 == 0:
                _progress(f"{len(turns)} of {count}", started)
    figures: dict[str, Any] = {way: served[way].summary() for way in TURNS}
    later = turn_figures(turn for turn in turns if turn.number > 1)
    return {
        "requests": len(turns),
        "at_once": AT_ONCE,
        **figures,
        **ratios(figures["plain"], figures["boosted"]),
        **{f"later_turns_{name}": value for name, value in later.items()},
        "turns": [
            {"turn": number, **turn_figures(turn for turn in turns if turn.number == number)}
            for number in sorted({turn.number for turn in turns})
        ],
    }


def converse(
    served: Mapping[str, Served],
    number: int,
    requests: Iterable[Request],
    *,
    max_prompt_tokens: int,
) -> Iterator[Turn]:
    """Send a conversation's turns, each in every way, one per step."""
    histories: dict[str, list[Body]] = {way: [] for way in TURNS}
    longest = 0
    for at, request in enumerate(requests, 1):
        new_tokens = sum(len(document.text) for document in request.documents) // 2
        if longest + new_tokens > max_prompt_tokens:
            return
        samples = {}
        for way, history in histories.items():
            body = completion(request, boost=way == "boosted")
            history.append({"role": "user", "content": body.pop("prompt")})
            body["ragboost"]["session_id"] = f"conversation-{number}"
            body |= {"messages": history, "max_tokens": ANSWER_TOKENS}
            sample = samples[way] = served[way].measure("/v1/chat/completions", body)
            history.append({"role": "assistant", "content": sample.answer})
            longest = max(longest, sample.prompt_tokens)
        yield Turn(at, samples)


def turn_figures(turns: Iterable[Turn]) -> dict[str, Any]:
    """Median TTFT and prompt tokens computed, of each way, and their ratios."""
    samples = [turn.samples for turn in turns]
    figures: dict[str, Any] = {"requests": len(samples)}
    if not samples:
        return figures
    for way in TURNS:
        of_way = [sample[way] for sample in samples]
        computed = sum(sample.prompt_tokens - sample.cached_tokens for sample in of_way)
        figures[f"{way}_ttft_p50_ms"] = round(statistics.median(s.ttft_ms for s in of_way), 1)
        figures[f"{way}_prefill_tokens"] = computed
    for name, figure in (("ttft_ratio", "ttft_p50_ms"), ("prefill_ratio", "prefill_tokens")):
        ratio = figures[f"plain_{figure}"] / max(figures[f"boosted_{figure}"], 1)
        figures[name] = round(ratio, 2)
    return figures


def ratios(plain: Mapping[str, Any], boosted: Mapping[str, Any]) -> dict[str, Any]:
    """How many times less the boosted way took."""
    quartiles = zip(plain["ttft_quartiles_ms"], boosted["ttft_quartiles_ms"], strict=True)
    return {
        "ttft_ratio": round(plain["ttft_p50_ms"] / boosted["ttft_p50_ms"], 2),
        "mean_ttft_ratio": round(plain["ttft_mean_ms"] / boosted["ttft_mean_ms"], 2),
        "quartile_ttft_ratios": [round(a / b, 2) for a, b in quartiles],
        "prefill_ratio": round(plain["prefill_tokens"] / max(boosted["prefill_tokens"], 1), 2),
    }


def completion(request: Request, *, boost: bool) -> Body:
    """A body with the documents beside the question."""
    documents = [
        {"id": document.id, "title": document.title, "text": document.text}
        for document in request.documents
    ]
    return {
        "prompt": request.query,
        "ragboost": {"documents": documents, "options": {"boost": boost}},
    }


def _progress(text: str, started: float) -> None:
    print(f"{text} after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
