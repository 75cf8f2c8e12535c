"""The commands `eval-reuse`, `calibrate` and `precompute`: chunk reuse."""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from ragboost.booster.context import render_document
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, POLICIES
from ragboost.cli.options import AS_JSON, MODEL, PROGRESS, check_paths
from ragboost.config import load_settings
from ragboost.config.model_directory import find_model
from ragboost.errors import RequestError, import_extra
from ragboost.types import Document

_DEVICE: str = typer.Option("cpu", help="Where the model runs.")


def eval_reuse(
    model: Path = MODEL,
    data: Path = typer.Option(
        ...,
        metavar="FILE.jsonl",
        help="JSONL with question, documents and answers (texts), or with token ids.",
    ),
    policy: list[str] = typer.Option(
        [],
        metavar="POLICY",
        help=f"Policy to measure, repeatable; by default {DEFAULT_POLICY}; one of "
        f"{', '.join(POLICIES)}.",
    ),
    ratio: list[float] = typer.Option(
        [0.05, 0.1, 0.15, 0.3], metavar="RATIO", help="Recompute ratio to measure, repeatable."
    ),
    granularity: int = typer.Option(1, min=1, help="Tokens per selected block."),
    max_new_tokens: int = typer.Option(32, min=1, help="Length of text answers."),
    limit: int | None = typer.Option(None, min=1, metavar="N", help="Read only the first N cases."),
    device: str = _DEVICE,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure the quality and speed of chunk reuse with your model on your prompts.

    \b
    ragboost eval-reuse --model ./Qwen3-0.6B --data questions.jsonl --policy anchored --ratio 0.15
    """
    import_extra("torch", extra="engine")
    model = find_model(model)
    check_paths(model=model, data=data)
    from ragboost.chunk_cache.eval.command import run

    text = run(
        model,
        data,
        policies=policy or [DEFAULT_POLICY],
        ratios=ratio,
        granularity=granularity,
        max_new_tokens=max_new_tokens,
        limit=limit,
        device=device,
        as_json=as_json,
    )
    typer.echo(text)


def calibrate(
    model: Path = MODEL,
    data: Path = typer.Option(..., metavar="FILE.jsonl", help="Prompts as for eval-reuse."),
    out: Path = typer.Option(
        Path("calibration.json"), help="File that engines read; a second run continues it."
    ),
    policy: list[str] = typer.Option(
        [],
        metavar="POLICY",
        help="Policy to try, repeatable; by default all that need no measurements.",
    ),
    ratio: list[float] = typer.Option(
        [0.05, 0.1, 0.15, 0.2, 0.3], metavar="RATIO", help="Recompute ratio to try, repeatable."
    ),
    cost: float | None = typer.Option(
        None,
        min=0.01,
        max=1.0,
        help="Largest processor time of a prefill, as a share of full attention's; by default that "
        f"of {DEFAULT_POLICY} at {DEFAULT_RATIO:g}.",
    ),
    limit: int = typer.Option(
        24, min=4, max=1000, help="Most prompts to read; half of them choose."
    ),
    device: str = _DEVICE,
    as_json: bool = AS_JSON,
    progress: bool | None = PROGRESS,
) -> None:
    """Choose policy and ratio of chunk reuse for your model by your prompts.

    Half of the prompts choose the candidate whose answers are nearest to full attention's within
    the cost, and the other half checks it. The default stays unless the check confirms the choice
    by more than a standard error; by chance, it does so in a sixth of the runs.

    \b
    ragboost calibrate --model ./Qwen3-0.6B --data questions.jsonl
    """
    import_extra("torch", extra="engine")
    model = find_model(model)
    check_paths(model=model, data=data)
    from ragboost.batch.display import progress_bar
    from ragboost.batch.files import check_not_input
    from ragboost.chunk_cache.eval.calibrate import run
    from ragboost.chunk_cache.selection.calibration import calibrated_policies

    check_not_input(out, inputs=[data])
    with progress_bar(progress) as on_progress:
        text = run(
            model,
            data,
            out,
            policies=policy or calibrated_policies(),
            ratios=ratio,
            max_cost=cost,
            limit=limit,
            device=device,
            as_json=as_json,
            on_progress=on_progress,
        )
    typer.echo(text)


_ENGINE: str = typer.Option(
    ...,
    metavar="URL",
    help="Running engine with chunk reuse. It stores each document computed alone, and measures it "
    "behind another one.",
)
_NEIGHBOURS: Path | None = typer.Option(
    None,
    help="JSONL with id and neighbours (ids, the closest last) for the second pass; by default, "
    "one constant document of the corpus precedes all others.",
)
_TEMPLATE: str | None = typer.Option(
    None,
    help="Text of a document in a prompt; \\n is a line end. By default as RAGBoost writes the "
    "documents of a `ragboost` object, a chat session or a component; use {text} for documents in "
    "your own messages.",
)
_PUBLIC_KEY: str | None = typer.Option(
    None,
    envvar="RAGBOOST_PUBLIC_KEY",
    help="The engine's setting public_key: all tenants may reuse the documents, and nothing is "
    "measured.",
)


def precompute(
    corpus: Path = typer.Option(..., help="JSONL of documents: id, title, text."),
    engine: str = _ENGINE,
    tenant: str = typer.Option("", help="Tenant whose requests reuse the documents."),
    cache_salt: str | None = typer.Option(None, help="Cache salt of these requests."),
    public_key: str | None = _PUBLIC_KEY,
    api_key: str | None = typer.Option(
        None, envvar="RAGBOOST_BACKEND__API_KEY", help="The engine's API key."
    ),
    concurrency: int = typer.Option(4, min=1, max=64, help="Requests at a time."),
    alone: bool = typer.Option(
        False,
        "--alone",
        help="Leave out the second pass, whose KV is reused behind other documents.",
    ),
    neighbours: Path | None = _NEIGHBOURS,
    system: Path | None = typer.Option(
        None, help="File with the text before the first document of a prompt."
    ),
    template: str | None = _TEMPLATE,
    as_json: bool = AS_JSON,
    progress: bool | None = PROGRESS,
) -> None:
    """Let a running engine compute the KV of a corpus, each document alone and behind another one.

    \b
    ragboost precompute --corpus corpus.jsonl --engine http://127.0.0.1:8000
    """
    from ragboost.batch.display import progress_bar
    from ragboost.chunk_cache.http.chunk_client import ChunkClient
    from ragboost.chunk_cache.http.precompute import prepare
    from ragboost.integrations.retrieval.corpus import Corpus
    from ragboost.integrations.retrieval.neighbours import read_neighbours

    client = ChunkClient(
        engine, api_key=api_key, tenant=tenant, cache_salt=cache_salt, public_key=public_key
    )
    check_paths(corpus=corpus, system=system, neighbours=neighbours)
    with progress_bar(progress) as on_progress:
        documents = Corpus.read(corpus)
        found = read_neighbours(documents, neighbours) if neighbours else None
        client.check()
        label = load_settings().hints.label_template
        outcome = prepare(
            client,
            [_text(document, template, label=label) for document in documents],
            [()] * len(documents) if alone else found,
            system=_read(system) if system else None,
            concurrency=concurrency,
            on_progress=on_progress,
        )
    typer.echo(json.dumps(asdict(outcome)) if as_json else outcome.sentences(is_alone=alone))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}") from None


def _text(document: Document, template: str | None, *, label: str) -> str:
    """Return a document as a prompt has it; without a template, as RAGBoost writes it."""
    if template is None:
        return render_document(document, label=label.replace("{label}", document.label))
    title = document.title or ""
    text = template.replace("\\n", "\n").replace("{title}\n", f"{title}\n" if title else "")
    return text.replace("{title}", title).replace("{text}", document.text).strip("\n")
