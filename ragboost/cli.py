"""The command line; `ragboost --help` lists the commands.

Parses, calls, prints. Logic lives in the packages.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ragboost import __version__
from ragboost.chunk_cache.selection import DEFAULT_POLICY, POLICIES
from ragboost.config import Settings, field_paths, load_settings
from ragboost.errors import ConfigError, RagBoostError

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


def _switch(path: str, flag: str) -> Any:
    """A flag that turns a setting on."""
    return typer.Option(None, flag, help=field_paths()[path], show_default=False)


def _backends(urls: list[str] | None) -> dict[str, Any]:
    """One URL is `backend.url`; several are `backends`. Either replaces what the file has."""
    if not urls:
        return {}
    return {"backend.url": urls[0], "backends": [{"url": url} for url in urls[1:] and urls]}


def _print_access_log() -> None:
    """The access log's lines go to standard output as they are."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("ragboost.access")
    logger.addHandler(handler)
    logger.propagate = False


@app.command()
def serve(
    backend: list[str] | None = typer.Option(
        None, help="Base URL of a backend, without /v1; give it once per backend."
    ),
    embedded: bool = typer.Option(
        False, "--embedded", help="Start the embedded engine, too, and use it as the backend."
    ),
    host: str | None = _setting("proxy.host"),
    port: int | None = _setting("proxy.port"),
    model: Path | None = _setting("engine.model"),
    insecure: bool | None = _switch("proxy.insecure", "--insecure"),
    shadow: bool | None = _switch("proxy.shadow", "--shadow"),
    access_log: bool | None = _switch("proxy.access_log", "--access-log"),
) -> None:
    """Serve the OpenAI-compatible proxy in front of a backend."""
    if embedded and backend is not None:
        raise ConfigError("--embedded starts its own backend; leave --backend away")
    flags: dict[str, Any] = {
        "proxy.host": host,
        "proxy.port": port,
        "engine.model": model,
        "proxy.insecure": insecure,
        "proxy.shadow": shadow,
        "proxy.access_log": access_log,
    }
    settings = load_settings({**flags, **_backends(backend)})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    _print_access_log()

    from ragboost.proxy.server import serve as serve_proxy

    if not embedded:
        serve_proxy(settings)
        return

    from ragboost.engine import create_engine_app
    from ragboost.serving import serve_in_thread

    with serve_in_thread(create_engine_app(settings.engine)) as url:
        serve_proxy(_in_front_of_engine(settings, url))


def _in_front_of_engine(settings: Settings, url: str) -> Settings:
    """Point the proxy at the embedded engine; its index is as large as the engine's cache."""
    capacity = settings.index.capacity_tokens or settings.engine.capacity_tokens
    return settings.model_copy(
        update={
            "backend": settings.backend.model_copy(update={"url": url}),
            "backends": (),
            "index": settings.index.model_copy(update={"capacity_tokens": capacity}),
        }
    )


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


@app.command()
def doctor(
    backend: list[str] | None = typer.Option(
        None, help="Base URL of a backend, without /v1; give it once per backend."
    ),
    kv_events: str | None = typer.Option(
        None, metavar="tcp://HOST:PORT", help="Where the backend publishes its cache events."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as one JSON object."),
) -> None:
    """Check what RAGBoost needs of its backends, and say what to change. Exit code 1: something
    does not work."""
    import asyncio

    from ragboost.proxy.doctor import examine, exit_code

    findings = asyncio.run(examine(load_settings(_backends(backend)), kv_events=kv_events))
    if as_json:
        typer.echo(json.dumps({"findings": [finding.as_json() for finding in findings]}))
    for finding in findings if not as_json else ():
        typer.echo(f"{finding.status:7} {finding.backend} {finding.check}: {finding.message}")
        if finding.fix:
            typer.echo(f"        {finding.fix}")
    raise typer.Exit(exit_code(findings))


@app.command()
def batch(
    source: Path = typer.Argument(..., metavar="IN.jsonl", help="Requests, one a line."),
    output: Path = typer.Option(
        ..., "--output", "-o", metavar="OUT.jsonl", help="The requests in release order."
    ),
    corpus: Path | None = typer.Option(None, help="JSONL of documents that `doc_ids` name."),
    cache_tokens: int | None = typer.Option(
        None, min=0, help="Tokens that the prefix cache holds, for the prediction."
    ),
    block_size: int | None = typer.Option(
        None, min=1, help="Tokens per block of that cache; without it, whole documents."
    ),
    strict: bool = typer.Option(False, help="Fail on malformed lines."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as one JSON object."),
    progress: bool | None = typer.Option(
        None, "--progress/--no-progress", help="Progress bar; by default on a terminal."
    ),
) -> None:
    """Order a file of requests so that their prompts share prefixes. Runs no model."""
    from rich.console import Console

    from ragboost.batch import run_batch
    from ragboost.batch.report import progress_bar, summary_sentence, summary_table, warning
    from ragboost.retrieval.corpus import Corpus

    settings = load_settings()
    console = Console(stderr=True)
    with progress_bar(console, is_shown=console.is_terminal if progress is None else progress) as p:
        summary = run_batch(
            source,
            output,
            settings=settings,
            corpus=Corpus.read(corpus) if corpus else None,
            cache_tokens=settings.index.capacity_tokens if cache_tokens is None else cache_tokens,
            block_size=block_size,
            strict=strict,
            keep=[corpus] if corpus else [],
            on_progress=p,
        )
    if summary.rejected:
        typer.echo(warning(summary, output), err=True)
    if as_json:
        typer.echo(json.dumps(summary.as_json()))
    else:
        Console().print(summary_table(summary))
        typer.echo(summary_sentence(summary))


@app.command()
def demo(
    sessions: int = typer.Option(200, min=1, help="Independent users, one question each."),
    conversations: int = typer.Option(10, min=1, help="Users who go on asking."),
    turns: int = typer.Option(4, min=1, help="Questions of a conversation."),
    k: int = typer.Option(8, "--k", min=1, help="Documents retrieved for a question."),
    capacity_tokens: int = typer.Option(65_536, min=1024, help="Size of the prefix cache."),
    seed: int = typer.Option(1, help="Of the questions drawn."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Replay a RAG workload through proxy and embedded engine, plain and boosted.

    The text is the documentation in Python's standard library; everything runs on this machine.
    """
    from ragboost.demo import run_demo
    from ragboost.demo.report import table

    result = run_demo(
        sessions=sessions,
        conversations=conversations,
        turns=turns,
        k=k,
        capacity_tokens=capacity_tokens,
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = Console()
    for title, part in (
        ("Sessions: independent users", "sessions"),
        ("Conversations", "conversations"),
        ("All requests", "all"),
    ):
        console.print(table(title, result[part]))


def main() -> None:
    """Run the command line; a RagBoostError becomes one sentence and exit code 2."""
    try:
        app()
    except RagBoostError as error:
        typer.echo(f"ragboost: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
