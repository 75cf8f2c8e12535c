"""The commands of `ragboost bench`."""

import asyncio
import json
from pathlib import Path

import typer

from ragboost.cli.options import AS_JSON, BODY, KEY_ENV, PROGRESS, api_key, json_fields

app = typer.Typer(
    help="Measure a server, or the proxy in front of it, with recorded traffic.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Keep `trace` a command of its own."""


@app.command()
def trace(
    file: Path = typer.Argument(
        ..., metavar="FILE", help="A log of proxy.record, Mooncake's trace, or RAGPulse's folder."
    ),
    endpoint: str = typer.Option(
        ..., metavar="URL", help="Any OpenAI-compatible server, without /v1."
    ),
    model: str = typer.Option(..., help="The model's name there."),
    speed: float = typer.Option(1.0, min=0.001, help="Seconds of the trace to send per second."),
    limit: int | None = typer.Option(
        None, min=1, metavar="N", help="Send only the first N requests."
    ),
    concurrency: int = typer.Option(64, min=1, max=4096, help="Most requests at a time."),
    max_tokens: int = typer.Option(16, min=1, help="Longest answer."),
    scale: float = typer.Option(
        1.0, min=0.001, max=10.0, help="Words for each token of the trace; below 1: shorter texts."
    ),
    body: str = BODY,
    key_env: str = KEY_ENV,
    timeout: float = typer.Option(
        600.0, min=1.0, metavar="SECONDS", help="Longest wait for a byte."
    ),
    as_json: bool = AS_JSON,
    progress: bool | None = PROGRESS,
) -> None:
    """Replay a trace of requests, with texts made of their ids and lengths.

    Sends each request when it arrived, whether or not earlier ones were answered, and reports the
    share of the prompt tokens that the server did not compute, and times to the first token. Run it
    against the server and against the proxy in front of it to compare.

    \b
    ragboost bench trace requests.jsonl --endpoint http://127.0.0.1:8080 --model MODEL --speed 60
    """
    from ragboost.batch.display import progress_bar
    from ragboost.evaluation.endpoint import ChatEndpoint
    from ragboost.evaluation.trace_replay import TraceReplay
    from ragboost.evaluation.traces import read_trace

    requests = read_trace(file, limit=limit)
    served = ChatEndpoint(
        endpoint, model=model, api_key=api_key(key_env), body=json_fields(body), timeout_s=timeout
    )
    replay = TraceReplay(
        served, speed=speed, concurrency=concurrency, max_tokens=max_tokens, scale=scale
    )
    with progress_bar(progress) as on_progress:
        result = asyncio.run(
            replay.run(requests, on_done=lambda done: on_progress("replaying", done, len(requests)))
        )
    typer.echo(json.dumps(result.as_json()) if as_json else result.sentences())
