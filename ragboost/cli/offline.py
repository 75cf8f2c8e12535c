"""The commands `batch`, `simulate` and `demo`."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ragboost.cli.options import AS_JSON, CORPUS, PROGRESS
from ragboost.config import EngineSettings, load_settings
from ragboost.errors import ConfigError

if TYPE_CHECKING:
    from ragboost.batch.job import BatchSummary


_SIMULATED = (
    "Simulated: the orders are real, the engine's prefix cache is a model, and there are no times. "
    "pip install 'ragboost-middleware\\[engine]' runs the same through a real engine."
)
_NEXT = "Next, for your own server: ragboost serve --backend http://127.0.0.1:8000"

_CACHE_TOKENS: int | None = typer.Option(
    None,
    min=0,
    help="Capacity of the prefix cache in tokens, for the prediction; by default "
    "index.capacity_tokens, else unbounded.",
)
_MEMORY: int = typer.Option(
    4000,
    "--memory",
    min=1,
    metavar="MB",
    help="Most memory to use; a file that needs more is refused.",
)


def batch(
    source: Path = typer.Argument(..., metavar="IN.jsonl", help="Requests, one per line."),
    output: Path = typer.Option(
        ..., "--output", "-o", metavar="OUT.jsonl", help="The requests in release order."
    ),
    corpus: Path | None = CORPUS,
    cache_tokens: int | None = _CACHE_TOKENS,
    memory: int = _MEMORY,
    strict: bool = typer.Option(False, "--strict", help="Fail on malformed lines."),
    as_json: bool = AS_JSON,
    progress: bool | None = PROGRESS,
) -> None:
    """Order a file of requests so that their prompts share prefixes. Runs no model.

    Reads the line format of OpenAI's batch API (also vLLM's run-batch), or questions with their
    documents, and writes the same lines in a new order, for the same tools.

    \b
    ragboost batch requests.jsonl -o ordered.jsonl --cache-tokens 100000
    """
    from ragboost.batch import run_batch
    from ragboost.batch.display import progress_bar
    from ragboost.integrations.retrieval.corpus import Corpus

    settings = load_settings()
    with progress_bar(progress) as on_progress:
        summary = run_batch(
            source,
            output,
            corpus=Corpus.read(corpus) if corpus else None,
            keep=[corpus] if corpus else [],
            settings=settings,
            cache_tokens=settings.index.capacity_tokens if cache_tokens is None else cache_tokens,
            memory_mb=memory,
            strict=strict,
            on_progress=on_progress,
        )
    _show(summary, output, as_json=as_json)


def _show(summary: "BatchSummary", output: Path, *, as_json: bool) -> None:
    from ragboost.batch.display import summary_sentence, summary_table
    from ragboost.batch.files import side_path
    from ragboost.batch.job import rejects_sentence
    from ragboost.requests.formats.detection import FOUND

    if not summary.requests:
        typer.echo("warning: no requests: the output is empty", err=True)
    if summary.rejected:
        said = rejects_sentence(summary.rejected, summary.problem, side_path(output, "rejects"))
        typer.echo(f"warning: {said}", err=True)
    if summary.requests and FOUND not in summary.detections:
        typer.echo(f"warning: {summary.detections_sentence()}", err=True)
    if as_json:
        typer.echo(json.dumps(summary.as_json()))
    else:
        if summary.before.prompt_tokens:
            Console().print(summary_table(summary))
        typer.echo(summary_sentence(summary))
        if FOUND in summary.detections:
            typer.echo(summary.detections_sentence())


def simulate(
    trace: Path = typer.Argument(
        ...,
        metavar="TRACE.jsonl",
        help="Requests in order of arrival, one per line, as for `batch`.",
    ),
    corpus: Path | None = CORPUS,
    cache_tokens: list[int] = typer.Option(
        [],
        min=1,
        metavar="N",
        help="Size of the prefix cache in tokens, repeatable; by default several.",
    ),
    as_json: bool = AS_JSON,
    progress: bool | None = PROGRESS,
) -> None:
    """Forecast the savings on your own trace. Runs no model.

    \b
    A line of a trace is what your retriever returned for a question:
    {"question": "Who signed?", "documents": [{"id": "7", "text": "..."}, ...]}

    \b
    ragboost simulate trace.jsonl --cache-tokens 100000 --cache-tokens 400000
    """
    from ragboost.batch.display import ESTIMATED, forecast_sentence, forecast_table, progress_bar
    from ragboost.batch.forecast import forecast
    from ragboost.integrations.retrieval.corpus import Corpus

    with progress_bar(progress) as on_progress:
        result = forecast(
            trace,
            settings=load_settings(),
            corpus=Corpus.read(corpus) if corpus else None,
            cache_tokens=cache_tokens,
            on_progress=on_progress,
        )
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    else:
        if not result.is_counted:
            typer.echo(ESTIMATED)
        Console().print(forecast_table(result))
        typer.echo(forecast_sentence(result))


def demo(
    sessions: int = typer.Option(200, min=1, help="Independent users, one question each."),
    conversations: int = typer.Option(10, min=1, help="Users with four questions each."),
    as_json: bool = AS_JSON,
) -> None:
    """Replay a RAG workload through proxy and embedded engine, plain and boosted.

    The text is the documentation in Python's standard library; everything runs on this machine,
    in a minute or two. If the model smollm2-135m was fetched, it answers a few questions, plain and
    boosted. Without PyTorch (the extra engine), the prefix cache is simulated, which takes seconds.
    """
    from ragboost.evaluation.demo import run_demo
    from ragboost.evaluation.demo.answers import ANSWERING, Answers, answer_table, ask_model
    from ragboost.evaluation.demo.comparison import table
    from ragboost.evaluation.demo.picture import picture
    from ragboost.evaluation.demo.replay import MODEL

    console, is_simulated = Console(stderr=True), find_spec("torch") is None
    workload, result = run_demo(
        sessions=sessions, conversations=conversations, is_simulated=is_simulated, console=console
    )
    answers: list[Answers] = []
    try:
        if not is_simulated:
            model = EngineSettings(model=ANSWERING, served_model_name=MODEL)
            answers = ask_model(model, console=console)
    except ConfigError as error:
        console.print(f"no answers of a language model are shown: {error}", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(result | {"answers": [row._asdict() for row in answers]}))
        return
    console = Console()
    for title, part in (
        ("Sessions: independent users", "sessions"),
        ("Conversations", "conversations"),
        ("All requests", "all"),
    ):
        console.print(table(title, result[part]))
    if answers:
        console.print(answer_table(f"Answers of {ANSWERING}", answers))
    console.print(picture(workload.sessions))
    if is_simulated:
        console.print(_SIMULATED, soft_wrap=True)
    console.print(_NEXT, soft_wrap=True)
