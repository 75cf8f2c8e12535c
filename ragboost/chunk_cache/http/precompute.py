"""Let a running engine store the documents of a corpus: each alone behind the system prompt, where
it is exact, then behind one constant document, or its neighbours (FusionRAG eq. 10), which answers
better behind others (docs/lab/language.md)."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.errors import RequestError

SEPARATOR = "\n\n"
QUESTION = "What follows?"
"""Stands behind the documents, so that the last one ends as it does before others."""
ROOM = 64
"""Tokens of the context that stay free for the chat template."""
CONSTANT_TOKENS = 512
"""The constant document is the longest of so many tokens at most, else the shortest."""
_MAX_REFUSED = 10
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class EngineCorpus:
    num_documents: int = 0  # with text
    # Those that the engine found in its prompt, and so stored; shorter ones than 16 tokens and
    # those that are tokenised otherwise inside a prompt are not.
    num_stored: int = 0
    num_measured: int = 0  # behind the constant document or their neighbours
    num_tokens: int = 0  # of all prompts
    num_refused: int = 0  # documents that the engine refuses, such as those that are too long
    refusal: str | None = None  # its first

    def sentences(self, *, is_alone: bool) -> str:
        text = (
            f"{self.num_stored:,} of {self.num_documents:,} documents stored, "
            f"{self.num_measured:,} measured, {self.num_tokens:,} tokens of prompts"
        )
        if self.refusal:
            text += f"\n{self.num_refused:,} refused by the engine, the first: {self.refusal}"
        if not is_alone and self.num_measured + 1 < self.num_stored:
            text += (
                "\nnot measured: what stands before the others or has no neighbour that fits, and "
                "what the store has lost; if it is too small, increase host_bytes, or set "
                "directory; an engine with several workers measures nothing, and stores KV behind "
                "neighbours all the same"
            )
        return text


def prepare(
    client: ChunkClient,
    texts: Sequence[str],
    neighbours: Sequence[Sequence[int]] | None,
    *,
    system: str | None,
    concurrency: int,
    on_progress: Progress,
) -> EngineCorpus:
    """Store each text, then measure it behind its `neighbours` (indices, the closest last; None:
    one constant text); both may be repeated. Empty texts are left out. Raises `RequestError` if the
    engine refuses all documents, or more than ten and than it takes."""
    outcome = EngineCorpus(num_documents=sum(bool(text) for text in texts))
    lengths = [0] * len(texts)

    def store(number: int) -> tuple[int, dict[str, Any] | RequestError]:
        try:
            return number, client.complete(*_prompt([texts[number]], system), alone)
        except RequestError as error:
            return number, error

    def measure(number: int) -> dict[str, Any]:
        others = [other for other in before[number] if other != number]
        near = fitting(others, lengths, room=client.max_tokens - ROOM - lengths[number])
        if not near:
            return {}
        options = {"reuse": {"policy": "reuse", "ratio": 0.0}, "measure": True}
        parts = [texts[other] for other in [*near, number]]
        with suppress(RequestError):
            return client.complete(*_prompt(parts, system), options)
        return {}

    is_for_all = client.stores_for_all
    # Exact KV that is stored is copied, so that a run that was cut short goes on where it was; only
    # what is computed becomes public.
    alone = {"reuse": "exact"} if is_for_all else {"reuse": "approx", "exact_chunks": 1}
    numbers = [number for number, text in enumerate(texts) if text]
    with ThreadPoolExecutor(concurrency, thread_name_prefix="ragboost-precompute") as threads:
        for done, (number, usage) in enumerate(threads.map(store, numbers), 1):
            if isinstance(usage, RequestError):
                outcome.num_refused += 1
                outcome.refusal = outcome.refusal or str(usage)
                if outcome.num_refused > max(_MAX_REFUSED, done - outcome.num_refused):
                    raise usage
            else:
                lengths[number] = int(usage.get("prompt_tokens", 0))
                outcome.num_tokens += lengths[number]
                outcome.num_stored += PARAMS_KEY in usage
            on_progress("documents", done, len(numbers))
        if outcome.refusal and not outcome.num_tokens:
            raise RequestError(outcome.refusal)
        before = neighbours or [_constant(lengths)] * len(texts)
        # What all tenants may read has been computed alone, and stays so.
        measured = [n for n in numbers if before[n] and lengths[n] and not is_for_all]
        for done, usage in enumerate(threads.map(measure, measured), 1):
            outcome.num_tokens += int(usage.get("prompt_tokens", 0))
            outcome.num_measured += usage.get(PARAMS_KEY, {}).get("recomputed", 0) > 0
            on_progress("measures", done, len(measured))
    return outcome


def _constant(lengths: Sequence[int]) -> list[int]:
    """Return the text that all others are stored behind, by its number; one at most."""
    stored = sorted((length, -number) for number, length in enumerate(lengths) if length)
    fit = [text for text in stored if text[0] <= CONSTANT_TOKENS] or stored[:1]
    return [-number for _, number in fit[-1:]]


def _prompt(
    parts: Sequence[str], system: str | None
) -> tuple[list[dict[str, str]], list[list[int]]]:
    messages = [{"role": "system", "content": system}] if system else []
    positions, at = [], 0
    for part in parts:
        positions.append([len(messages), at, at + len(part)])
        at += len(part) + len(_gap(part))
    content = "".join([f"{part}{_gap(part)}" for part in parts]) + QUESTION
    return [*messages, {"role": "user", "content": content}], positions


def _gap(part: str) -> str:
    return "" if part.endswith(SEPARATOR) else SEPARATOR


def fitting(near: Sequence[int], lengths: Sequence[int], *, room: int) -> list[int]:
    """Return the last documents of `near`, the closest, that fit into so many tokens, in order;
    empty ones are left out."""
    found: list[int] = []
    for number in reversed(near):
        room -= lengths[number]
        if room < 0:
            break
        if lengths[number]:
            found.append(number)
    return found[::-1]
