"""Let a running engine store and measure the documents of a corpus: each alone behind the system
prompt, then behind its neighbours, as `cachecraft` and `hybrid-offline` need."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.chunk_cache.http.chunk_client import ChunkClient

SEPARATOR = "\n\n"
QUESTION = "What follows?"
"""Stands behind the documents, so that the last one ends as it does before others."""
ROOM = 64
"""Tokens of the context that stay free for the chat template."""
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class EngineCorpus:
    num_documents: int = 0  # with text
    # Those that the engine found in its prompt, and so stored; shorter ones than 16 tokens and
    # those that are tokenised otherwise inside a prompt are not.
    num_stored: int = 0
    num_measured: int = 0  # behind their neighbours
    num_tokens: int = 0  # of all prompts

    def sentences(self, *, top_n: int) -> str:
        text = (
            f"{self.num_stored:,} of {self.num_documents:,} documents stored, "
            f"{self.num_measured:,} measured, {self.num_tokens:,} tokens of prompts"
        )
        if top_n and self.num_measured < self.num_stored:
            text += (
                "\nnot measured: documents without neighbours, and those that the store has lost; "
                "if it is too small, increase host_bytes, or set directory; an engine with several "
                "workers measures nothing: use --top-n 0 with it"
            )
        return text


def prepare(
    client: ChunkClient,
    texts: Sequence[str],
    neighbours: Sequence[Sequence[int]],
    *,
    system: str | None,
    concurrency: int,
    on_progress: Progress,
) -> EngineCorpus:
    """Store each text, then measure it behind its `neighbours` (indices, the closest last); both
    may be repeated. Empty texts are left out."""
    outcome = EngineCorpus(num_documents=sum(bool(text) for text in texts))
    lengths = [0] * len(texts)

    def store(number: int) -> tuple[int, dict[str, Any]]:
        options = {"reuse": "exact"}
        return number, client.complete(*_prompt([texts[number]], system), options)

    def measure(number: int) -> tuple[int, dict[str, Any]]:
        others = [other for other in neighbours[number] if other != number]
        near = fitting(others, lengths, room=client.max_tokens - ROOM - lengths[number])
        if not near:
            return number, {}
        options = {"reuse": {"policy": "reuse", "ratio": 0.0}, "measure": True}
        parts = [texts[other] for other in [*near, number]]
        return number, client.complete(*_prompt(parts, system), options)

    numbers = [number for number, text in enumerate(texts) if text]
    with ThreadPoolExecutor(concurrency, thread_name_prefix="ragboost-precompute") as threads:
        for done, (number, usage) in enumerate(threads.map(store, numbers), 1):
            lengths[number] = int(usage.get("prompt_tokens", 0))
            outcome.num_tokens += lengths[number]
            outcome.num_stored += PARAMS_KEY in usage
            on_progress("documents", done, len(numbers))
        # What all tenants may read has been computed alone, and stays so.
        is_alone = client.stores_for_all
        measured = [number for number in numbers if neighbours[number] and not is_alone]
        for done, (_, usage) in enumerate(threads.map(measure, measured), 1):
            outcome.num_tokens += int(usage.get("prompt_tokens", 0))
            outcome.num_measured += usage.get(PARAMS_KEY, {}).get("recomputed", 0) > 0
            on_progress("measures", done, len(measured))
    return outcome


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
