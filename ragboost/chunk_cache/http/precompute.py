"""`ragboost precompute --engine`: let a running engine store and measure the documents of a corpus.

Each document is computed alone behind the system prompt, then once more behind its neighbours,
which measures what `cachecraft` and `hybrid-offline` need. Knows the engine's HTTP routes. Does not
load torch.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragboost.chunk_cache.core.options import FIELD
from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.precompute.sources import Sources, find_neighbours
from ragboost.context import render_document
from ragboost.errors import ConfigError
from ragboost.retrieval.corpus import Corpus
from ragboost.types import Document

SEPARATOR = "\n\n"
QUESTION = "What follows?"
"""Stands behind the documents, so that the last one ends as it does before others."""
ROOM = 64
"""Tokens of the context that stay free for the chat template."""
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class EngineCorpus:
    """The documents of a corpus in an engine's store.

    Attributes:
        num_documents: documents with text.
        num_stored: those that the engine found in its prompt, and so stored; shorter ones than 16
            tokens and those that are tokenised otherwise inside a prompt are not.
        num_measured: those that were measured behind their neighbours.
        num_tokens: tokens of all prompts.
    """

    num_documents: int = 0
    num_stored: int = 0
    num_measured: int = 0
    num_tokens: int = 0


def run(
    client: ChunkClient,
    corpus: Path,
    *,
    top_n: int,
    sources: Sources,
    system: Path | None,
    template: str | None,
    label: str,
    concurrency: int,
    as_json: bool,
    on_progress: Progress,
) -> str:
    """Prepare a corpus in a running engine, and return sentences or JSON.

    Args:
        client: the engine.
        corpus: JSONL of documents.
        top_n: neighbours of each document; 0: measure nothing.
        sources: of neighbours.
        system: file with the system message.
        template: text of a document in a prompt; None: a block as RAGBoost writes it.
        label: template of the label in such a block.
        concurrency: requests at a time.
        as_json: return one JSON object.
        on_progress: called with a stage, and how much of how much is done.

    Raises:
        ConfigError: a path does not exist, or the engine cannot reuse chunks.
        RequestError: an invalid line of a file.
        BackendError: the engine cannot be reached, or refuses a request.
    """
    for name, path in {"corpus": corpus, "system": system, **asdict(sources)}.items():
        if path is not None and not path.exists():
            raise ConfigError(f"--{name} {path} does not exist")
    documents = Corpus.read(corpus)
    on_progress("neighbours", 0, 1)
    neighbours = find_neighbours(documents, sources, top_n=top_n)
    on_progress("neighbours", 1, 1)
    client.check()
    message = system.read_text(encoding="utf-8") if system else None
    texts = [_text(document, template, label=label) for document in documents]
    told = prepare(
        client,
        texts,
        neighbours,
        system=message,
        concurrency=concurrency,
        on_progress=on_progress,
    )
    return json.dumps(asdict(told)) if as_json else _sentences(told, top_n=top_n)


def prepare(
    client: ChunkClient,
    texts: Sequence[str],
    neighbours: Sequence[Sequence[int]],
    *,
    system: str | None,
    concurrency: int,
    on_progress: Progress,
) -> EngineCorpus:
    """Store each text, then measure it behind its neighbours; both may be repeated at any time.

    Args:
        client: the engine.
        texts: of the documents as in a prompt; empty ones are left out.
        neighbours: for each text, indices of others, the closest last.
        system: the system message of the prompts.
        concurrency: requests at a time.
        on_progress: see `run`.
    """
    outcome = EngineCorpus(num_documents=sum(bool(text) for text in texts))
    lengths = [0] * len(texts)

    def store(number: int) -> tuple[int, dict[str, Any]]:
        options = {"reuse": "exact"}
        return number, client.complete(*_prompt([texts[number]], system), options)

    def measure(number: int) -> tuple[int, dict[str, Any]]:
        near = _fitting(neighbours[number], lengths, own=number, room=client.max_tokens - ROOM)
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
            outcome.num_stored += FIELD in usage
            on_progress("documents", done, len(numbers))
        measured = [number for number in numbers if neighbours[number]]
        for done, (_, usage) in enumerate(threads.map(measure, measured), 1):
            outcome.num_tokens += int(usage.get("prompt_tokens", 0))
            outcome.num_measured += usage.get(FIELD, {}).get("recomputed_tokens", 0) > 0
            on_progress("measures", done, len(measured))
    return outcome


def _prompt(
    parts: Sequence[str], system: str | None
) -> tuple[list[dict[str, str]], list[list[int]]]:
    """Return the messages with these documents, and their positions."""
    messages = [{"role": "system", "content": system}] if system else []
    positions, at = [], 0
    for part in parts:
        positions.append([len(messages), at, at + len(part)])
        at += len(part) + len(_gap(part))
    content = "".join([f"{part}{_gap(part)}" for part in parts]) + QUESTION
    return [*messages, {"role": "user", "content": content}], positions


def _fitting(near: Iterable[int], lengths: Sequence[int], *, own: int, room: int) -> list[int]:
    """Return the closest neighbours that fit into the context before a document, in order."""
    room -= lengths[own]
    fitting: list[int] = []
    for other in reversed(list(near)):
        room -= lengths[other]
        if room < 0:
            break
        if lengths[other] and other != own:
            fitting.append(other)
    return fitting[::-1]


def _gap(part: str) -> str:
    """Return what stands between a document and the next; blocks have it themselves."""
    return "" if part.endswith(SEPARATOR) else SEPARATOR


def _text(document: Document, template: str | None, *, label: str) -> str:
    if template is None:
        return render_document(document, label=label.replace("{label}", document.label))
    title = document.title or ""
    text = template.replace("{title}\n", f"{title}\n" if title else "")
    return text.replace("{title}", title).replace("{text}", document.text).strip("\n")


def _sentences(told: EngineCorpus, *, top_n: int) -> str:
    text = (
        f"{told.num_stored:,} of {told.num_documents:,} documents stored, "
        f"{told.num_measured:,} measured, {told.num_tokens:,} tokens of prompts"
    )
    if top_n and told.num_measured < told.num_stored:
        text += (
            "\nnot measured: documents without neighbours, and those that the store has lost; if "
            "it is too small, increase host_bytes, or set directory; an engine with several "
            "workers measures nothing: use --top-n 0 with it"
        )
    return text
