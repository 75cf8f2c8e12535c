"""The command line: `ragboost serve | engine | batch | demo | doctor | bench | eval-reuse`.

Parses, calls, prints. Logic lives in the packages.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import typer

from ragboost import __version__
from ragboost.chunk_cache.selection import DEFAULT_POLICY, POLICIES
from ragboost.config import field_paths, load_settings
from ragboost.errors import RagBoostError

app = typer.Typer(
    name="ragboost",
    help="Make the prompts of a RAG application share prefixes, in front of SGLang and vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _setting(path: str) -> Any:
    """An option that overrides a setting; its help is the setting's description."""
    return typer.Option(None, help=field_paths()[path], show_default=False)


@app.command()
def engine(
    model: Path | None = _setting("engine.model"),
    host: str | None = _setting("engine.host"),
    port: int | None = _setting("engine.port"),
    served_model_name: str | None = _setting("engine.served_model_name"),
    capacity_tokens: int | None = _setting("engine.capacity_tokens"),
    block_size: int | None = _setting("engine.block_size"),
    max_model_len: int | None = _setting("engine.max_model_len"),
    device: str | None = _setting("engine.device"),
    dtype: str | None = _setting("engine.dtype"),
    num_threads: int | None = _setting("engine.num_threads"),
    kv_events_endpoint: str | None = _setting("engine.kv_events_endpoint"),
    kv_events_replay_endpoint: str | None = _setting("engine.kv_events_replay_endpoint"),
) -> None:
    """Serve a Hugging Face model, or a small built-in one, with an exact prefix cache."""
    flags = {f"engine.{name}": value for name, value in locals().items()}
    settings = load_settings(flags).engine
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

    from ragboost.engine import create_engine_app
    from ragboost.serving import serve

    serve(create_engine_app(settings), host=settings.host, port=settings.port)


@app.command("eval-reuse")
def eval_reuse(
    model: Path = typer.Option(..., help="Directory of a Hugging Face causal LM."),
    data: Path = typer.Option(
        ..., help="JSONL with question, documents and answers (texts), or with token ids."
    ),
    policy: list[str] = typer.Option(
        [], help=f"Policy to measure, repeatable; one of {', '.join(POLICIES)}."
    ),
    ratio: list[float] = typer.Option(
        [0.05, 0.1, 0.15, 0.3], help="Recompute ratio to measure, repeatable."
    ),
    granularity: int = typer.Option(1, min=1, help="Choose tokens (1) or blocks of so many."),
    max_new_tokens: int = typer.Option(32, min=1, help="Length of text answers."),
    limit: int | None = typer.Option(None, min=1, help="Read at most so many cases."),
    device: str = typer.Option("cpu", help="Where the model runs."),
    plot: Path | None = typer.Option(None, help="Write score against ratio as SVG, per task."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure what chunk reuse costs and saves with your model on your prompts."""
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
        plot_path=plot,
        as_json=as_json,
    )
    typer.echo(text)


def main() -> None:
    """Run the command line; a RagBoostError becomes one sentence and exit code 2."""
    try:
        app()
    except RagBoostError as error:
        typer.echo(f"ragboost: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
