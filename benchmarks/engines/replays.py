"""Replay workloads for the end-to-end benchmark: independent requests and conversations.

Knows workloads and request bodies. Does not know engines.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

from benchmarks.engines.served import Served
from ragboost.booster.booster import Booster
from ragboost.types import Request
from scripts.http_client import CHAT, COMPLETIONS, Answer

INDEPENDENT = ("plain", "boosted", "online")
TURNS = ("plain", "boosted")
STRETCHES = 20
ANSWER_TOKENS = 8
_CHARACTERS_PER_TOKEN = 2  # fewer than the tiny models' 2.5, so that no prompt is too long

Body = dict[str, Any]


class Round(NamedTuple):
    """Requests sent concurrently, after an unmeasured one that prepares the cache."""

    bodies: Sequence[Body]
    before: Body | None = None


class Turn(NamedTuple):
    """One turn of a conversation, with its sample in each mode."""

    number: int
    samples: Mapping[str, Answer]


def replay_independent(
    served: Mapping[str, Served],
    requests: Sequence[Request],
    *,
    count: int,
    sample: str,
    at_once: int,
) -> dict[str, Any]:
    """Send independent requests: plain, planned as a batch, and boosted one by one.

    Of the whole set `count` are measured. `sample="first"`: the first ones, planned by themselves;
    `"stretches"`: STRETCHES runs of consecutive requests in the plan of the whole set, each sent
    after its predecessor in the plan, while the other modes get the same requests in the order of
    the set. A mode gets `at_once` requests before the next mode gets its round.
    """
    if sample == "first":
        requests = requests[:count]
    plan = Booster().boost_batch(requests)
    planned: list[Round] = []
    positions: list[int] = []
    for start, end in stretches(len(requests), min(count, len(requests))):
        bodies: list[Body] = [{"prompt": plan.contexts[i].render()} for i in range(start, end)]
        before: Body | None = {"prompt": plan.contexts[start - 1].render()} if start else None
        first, *others = rounds(bodies, at_once)
        planned += [first._replace(before=before), *others]
        positions += plan.order[start:end]
    positions.sort()
    sizes = [len(each.bodies) for each in planned]
    by_mode = {
        "plain": rounds_of_sizes([completion(requests[i], boost=False) for i in positions], sizes),
        "boosted": planned,
        "online": rounds_of_sizes([completion(requests[i], boost=True) for i in positions], sizes),
    }
    send_interleaved(served, by_mode)
    figures: dict[str, Any] = {mode: served[mode].summary() for mode in INDEPENDENT}
    return {
        "requests": len(positions),
        "of": len(requests),
        "sample": sample,
        **figures,
        **ratios(figures["plain"], figures["boosted"]),
        **{f"online_{name}": x for name, x in ratios(figures["plain"], figures["online"]).items()},
    }


def stretches(total: int, count: int) -> list[tuple[int, int]]:
    """Return evenly spaced runs of equal length with `count` of `total` positions in all; a single
    run if `count` is `total`."""
    if count == total:
        return [(0, total)]
    num = min(STRETCHES, count)
    skipped = total - count
    starts = [count * i // num + skipped * (2 * i + 1) // (2 * num) for i in range(num)]
    lengths = [count * (i + 1) // num - count * i // num for i in range(num)]
    return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]


def rounds(bodies: Sequence[Body], at_once: int) -> list[Round]:
    """Cut requests into rounds of `at_once`."""
    return [Round(bodies[i : i + at_once]) for i in range(0, len(bodies), at_once)]


def rounds_of_sizes(bodies: Sequence[Body], sizes: Sequence[int]) -> list[Round]:
    """Cut requests into rounds of these sizes, so that queueing is the same in all modes."""
    ends = list(accumulate(sizes))
    return [Round(bodies[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def send_interleaved(
    served: Mapping[str, Served],
    by_mode: Mapping[str, Sequence[Round]],
    *,
    after_round: Callable[[], object] = lambda: None,
) -> None:
    """Send the first round of every mode, then the second ones, and so on."""
    started = time.monotonic()
    for number, row in enumerate(zip_longest(*by_mode.values()), 1):
        for mode, group in zip(by_mode, row, strict=True):
            if group is None:
                continue
            if group.before:
                served[mode].prepare(COMPLETIONS, group.before)
            served[mode].measure(COMPLETIONS, group.bodies)
        _progress(f"round {number} of {max(map(len, by_mode.values()))}", served, started)
        after_round()


def replay_turns(
    served: Mapping[str, Served],
    conversations: Sequence[Sequence[Request]],
    *,
    count: int,
    at_once: int,
    max_prompt_tokens: int,
) -> dict[str, Any]:
    """Send conversations turn by turn; both modes resend the history unchanged.

    A round holds a turn of `at_once` conversations; `count` requests are sent in all. A
    conversation ends before a turn whose prompt would exceed `max_prompt_tokens`.
    """
    waiting = [
        Conversation(f"conversation-{number}", requests, max_prompt_tokens=max_prompt_tokens)
        for number, requests in enumerate(conversations)
    ]
    turns: list[Turn] = []
    started = time.monotonic()
    while len(turns) < count:
        waiting = [conversation for conversation in waiting if conversation.has_next]
        running = waiting[: min(at_once, count - len(turns))]
        if not running:
            break
        by_conversation: list[dict[str, Answer]] = [{} for _ in running]
        for mode in TURNS:
            bodies = [conversation.body(mode) for conversation in running]
            measured = served[mode].measure(CHAT, bodies)
            for samples, sample in zip(by_conversation, measured, strict=True):
                samples[mode] = sample
        turns += [
            conversation.add_turn(samples)
            for conversation, samples in zip(running, by_conversation, strict=True)
        ]
        _progress(f"{len(turns)} of {count}", served, started)
    figures: dict[str, Any] = {mode: served[mode].summary() for mode in TURNS}
    later = turn_figures(turn for turn in turns if turn.number > 1)
    return {
        "requests": len(turns),
        **figures,
        **ratios(figures["plain"], figures["boosted"]),
        **{f"later_turns_{name}": value for name, value in later.items()},
        "turns": [
            {"turn": number, **turn_figures(turn for turn in turns if turn.number == number)}
            for number in sorted({turn.number for turn in turns})
        ],
    }


class Conversation:
    """A conversation with a history per mode."""

    def __init__(self, name: str, requests: Sequence[Request], *, max_prompt_tokens: int) -> None:
        self._name = name
        self._requests = requests
        self._max_prompt_tokens = max_prompt_tokens
        self._histories: dict[str, list[Body]] = {mode: [] for mode in TURNS}
        self._turns = 0
        self._longest = 0

    @property
    def has_next(self) -> bool:
        """True if another turn follows and its prompt fits into the engine's context."""
        if self._turns == len(self._requests):
            return False
        documents = self._requests[self._turns].documents
        new_tokens = sum(len(document.text) for document in documents) // _CHARACTERS_PER_TOKEN
        return self._longest + new_tokens <= self._max_prompt_tokens

    def body(self, mode: str) -> Body:
        """Return the request body of the next turn."""
        body = completion(self._requests[self._turns], boost=mode == "boosted")
        self._histories[mode].append({"role": "user", "content": body.pop("prompt")})
        body["ragboost"]["session_id"] = self._name
        return {**body, "messages": self._histories[mode], "max_tokens": ANSWER_TOKENS}

    def add_turn(self, samples: Mapping[str, Answer]) -> Turn:
        """Append each mode's response to its history and return the finished turn."""
        for mode, sample in samples.items():
            self._histories[mode].append({"role": "assistant", "content": sample.text or "-"})
            self._longest = max(self._longest, sample.prompt_tokens)
        self._turns += 1
        return Turn(self._turns, samples)


def turn_figures(turns: Iterable[Turn]) -> dict[str, Any]:
    """Return the median TTFT and prefill tokens of each mode, and their ratios."""
    samples = [turn.samples for turn in turns]
    figures: dict[str, Any] = {"requests": len(samples)}
    if not samples:
        return figures
    for mode in TURNS:
        of_mode = [sample[mode] for sample in samples]
        computed = sum(sample.prompt_tokens - sample.cached_tokens for sample in of_mode)
        figures[f"{mode}_ttft_p50_ms"] = round(
            statistics.median(a.ttft_s * 1000 for a in of_mode), 1
        )
        figures[f"{mode}_prefill_tokens"] = computed
    for name, figure in (("ttft_ratio", "ttft_p50_ms"), ("prefill_ratio", "prefill_tokens")):
        ratio = figures[f"plain_{figure}"] / max(figures[f"boosted_{figure}"], 1)
        figures[name] = round(ratio, 2)
    return figures


def ratios(plain: Mapping[str, Any], boosted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ratios plain / boosted of TTFT and prefill tokens."""
    quartiles = zip(plain["ttft_quartiles_ms"], boosted["ttft_quartiles_ms"], strict=True)
    return {
        "ttft_ratio": round(plain["ttft_p50_ms"] / boosted["ttft_p50_ms"], 2),
        "mean_ttft_ratio": round(plain["ttft_mean_ms"] / boosted["ttft_mean_ms"], 2),
        "quartile_ttft_ratios": [round(a / b, 2) for a, b in quartiles],
        "prefill_ratio": round(plain["prefill_tokens"] / max(boosted["prefill_tokens"], 1), 2),
    }


def completion(request: Request, *, boost: bool, reuse: Mapping[str, Any] | None = None) -> Body:
    """Return a completion body with the documents in a `ragboost` object."""
    documents = [
        {"id": document.id, "title": document.title, "text": document.text}
        for document in request.documents
    ]
    return {
        "prompt": request.query,
        "ragboost": {
            "documents": documents,
            "options": {"boost": boost},
            **({"reuse": reuse} if reuse is not None else {}),
        },
    }


def _progress(text: str, served: Mapping[str, Served], started: float) -> None:
    medians = (
        f"{mode} {statistics.median(answer.ttft_s for answer in engine.answers):.3f} s"
        for mode, engine in served.items()
        if engine.answers
    )
    seconds = f"after {time.monotonic() - started:.0f} s"
    print(text, seconds, *medians, sep=", ", file=sys.stderr, flush=True)
