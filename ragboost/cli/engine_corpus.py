"""`ragboost precompute --engine`: let a running engine store a corpus."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.http.precompute import EngineCorpus, Progress, prepare
from ragboost.context import render_document
from ragboost.errors import RequestError
from ragboost.types import Document


def run(
    client: ChunkClient,
    documents: Sequence[Document],
    *,
    neighbours: Sequence[Sequence[int]],
    top_n: int,
    system: Path | None,
    template: str | None,
    label: str,
    concurrency: int,
    as_json: bool,
    on_progress: Progress,
) -> str:
    """Prepare a corpus in a running engine, and return sentences or JSON.

    Without neighbours (`top_n` 0) nothing is measured. Without a `template`, a document is a block
    as RAGBoost writes it, with this `label`.
    """
    client.check()
    outcome = prepare(
        client,
        [_text(document, template, label=label) for document in documents],
        neighbours,
        system=_read(system) if system else None,
        concurrency=concurrency,
        on_progress=on_progress,
    )
    return json.dumps(asdict(outcome)) if as_json else _sentences(outcome, top_n=top_n)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}") from None


def _text(document: Document, template: str | None, *, label: str) -> str:
    if template is None:
        return render_document(document, label=label.replace("{label}", document.label))
    return _fill_template(template, document).strip("\n")


def _fill_template(template: str, document: Document) -> str:
    title = document.title or ""
    text = template.replace("{title}\n", f"{title}\n" if title else "")
    return text.replace("{title}", title).replace("{text}", document.text)


def _sentences(outcome: EngineCorpus, *, top_n: int) -> str:
    text = (
        f"{outcome.num_stored:,} of {outcome.num_documents:,} documents stored, "
        f"{outcome.num_measured:,} measured, {outcome.num_tokens:,} tokens of prompts"
    )
    if top_n and outcome.num_measured < outcome.num_stored:
        text += (
            "\nnot measured: documents without neighbours, and those that the store has lost; if "
            "it is too small, increase host_bytes, or set directory; an engine with several "
            "workers measures nothing: use --top-n 0 with it"
        )
    return text
