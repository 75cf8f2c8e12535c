"""The command line: `ragboost serve | engine | batch | demo | doctor | bench`.

Parses, calls, prints. Logic lives in the packages.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import typer

from ragboost import __version__
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


def main() -> None:
    """Run the command line; a RagBoostError becomes one sentence and exit code 2."""
    try:
        app()
    except RagBoostError as error:
        typer.echo(f"ragboost: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
