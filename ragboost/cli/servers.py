"""The commands `serve`, `engine` and `doctor`."""

import gzip
import json
import logging
import sys
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ragboost.cli.options import CONFIG, backends, setting, switch
from ragboost.config import EngineSettings, LogSettings, Settings, load_settings, settings_file
from ragboost.config.model_directory import check_model, find_model
from ragboost.errors import ConfigError, RequestError

logger = logging.getLogger(__name__)


class _TextLines(logging.Formatter):
    """Lines that begin with the time in UTC, as the access log has it."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _JsonLines(_TextLines):
    """One JSON object per event; a traceback is a string in it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def log_to_terminal(settings: LogSettings) -> None:
    """Write the log to standard error and the access log to standard output."""
    lines = _JsonLines if settings.format == "json" else _TextLines
    handler = logging.StreamHandler()
    handler.setFormatter(lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    access = logging.getLogger("ragboost.access")
    access.setLevel(logging.INFO)  # it is switched on and off by `proxy.access_log` alone
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.propagate = False


def log_settings_file(path: Path | None) -> None:
    """Say which file the settings are from."""
    logger.info("settings from %s", path or "flags and environment: no ragboost.toml here")


if TYPE_CHECKING:
    from ragboost.requests.explanation import Explanation

_STDIN = Path("-")
_MAX_SHOWN = 50  # documents


def try_request(path: Path, settings: Settings, *, as_json: bool) -> NoReturn:
    """Explain the request in a file, or on standard input; exit with 1 if no document is found."""
    from ragboost.proxy.asgi.request_body import as_utf8
    from ragboost.requests.explanation import Explainer
    from ragboost.requests.formats.detection import FOUND

    raw = _read(path, settings.proxy.max_body_bytes)
    explanation = Explainer(settings).explain(as_utf8(raw))
    if as_json:
        typer.echo(explanation.as_json())
    else:
        for line in _lines(explanation):
            typer.echo(line)
    raise typer.Exit(int(explanation.detection not in (FOUND, "nothing_to_do")))


def _read(path: Path, limit: int) -> bytes:
    try:
        if path == _STDIN:
            raw = sys.stdin.buffer.read(limit + 1)
        else:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                raw = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise RequestError(f"--try: cannot read {path}: {why}") from None
    if len(raw) > limit:
        raise RequestError(
            f"--try: {path} has more than {limit:,} bytes (proxy.max_body_bytes): give one request"
        )
    return raw


def _lines(explanation: "Explanation") -> list[str]:
    """Return lines without control characters, whatever the request's texts have."""
    from ragboost.requests.headers import printable

    documents = explanation.documents
    frame = f" in the frame {explanation.frame}" if explanation.frame else ""
    num = f": {len(documents):,} documents to order" if documents else ""
    lines = [f"{explanation.detection}{num}{frame}"]
    lines += [
        f"{at:5}  {document.tokens:6,} tokens  {document.begins}"
        for at, document in enumerate(documents[:_MAX_SHOWN], 1)
    ]
    if len(documents) > _MAX_SHOWN:
        lines.append(f"       and {len(documents) - _MAX_SHOWN:,} more")
    if explanation.order:
        order = ", ".join(map(str, explanation.order[:_MAX_SHOWN]))
        lines.append(f"sent, if a request had brought them in reverse order: {order}")
    if explanation.note:
        lines.append(f"the model is told: {printable(explanation.note)}")
    if explanation.sent:
        how = "counted" if explanation.is_counted else "estimated"
        before, after = explanation.tokens_before, explanation.tokens_after
        lines.append(f"tokens of the texts: {before:,} before, {after:,} after ({how})")
    if explanation.why:
        lines.append(f"why: {printable(explanation.why)}")
    if explanation.advice:
        lines.append(f"what helps: {explanation.advice}")
    return lines


_BACKEND = (
    "Base URL of a backend, without /v1; give it once per backend; by default "
    "http://127.0.0.1:8000."
)
_EMBEDDED_DRAIN_S = 3  # the engine, which the answers come from, ends as well
_EMBEDDED_HEALTH_S = 30.0  # its engine shares the process: busy, it answers late, and lives
# Options of `serve` that are no settings of the proxy.
_OTHERS = ("backend", "embedded", "model", "config", "log_level")


def serve(
    backend: list[str] | None = typer.Option(
        None, metavar="URL", help=_BACKEND, show_default=False
    ),
    embedded: bool = typer.Option(
        False, "--embedded", help="Also start the embedded engine, and use it as the backend."
    ),
    host: str | None = setting("proxy.host", metavar="ADDRESS"),
    port: int | None = setting("proxy.port"),
    model: Path | None = setting("engine.model", metavar="MODEL"),
    insecure: bool | None = switch("proxy.insecure", "--insecure"),
    shadow: bool | None = switch("proxy.shadow", "--shadow"),
    access_log: bool | None = switch("proxy.access_log", "--access-log"),
    config: Path | None = CONFIG,
    log_level: str | None = setting("log.level", metavar="LEVEL"),
) -> None:
    """Serve the OpenAI-compatible proxy in front of a backend.

    Every setting can also be given in ./ragboost.toml, another --config FILE, or the environment,
    for example as RAGBOOST_PROXY__PORT.

    \b
    ragboost serve --backend http://127.0.0.1:8000
    ragboost serve --backend http://gpu-1:8000 --backend http://gpu-2:8000
    ragboost serve --embedded    # without a backend of your own; needs the extra engine
    """
    flags = {f"proxy.{name}": value for name, value in locals().items() if name not in _OTHERS}
    if embedded and backend is not None:
        raise ConfigError("--embedded starts its own backend: omit --backend")
    if model is not None and not embedded:
        raise ConfigError("--model is for --embedded; a backend names its own models")
    flags |= {"engine.model": model, "log.level": log_level}
    config = config or settings_file()
    settings = load_settings({**flags, **backends(backend)}, toml=config)
    log_to_terminal(settings.log)
    log_settings_file(config)

    from ragboost.proxy.server import serve as serve_proxy

    if not embedded:
        serve_proxy(settings)
        return

    engine_settings = _with_found_model(settings.engine)
    logger.info("embedded engine: loading PyTorch (some seconds)")

    from ragboost.engine import create_engine_app, with_events
    from ragboost.proxy.serving import serve_in_thread

    name, reuses = engine_settings.model or "the built-in model", bool(engine_settings.chunks)
    reuse = "on, testing it" if reuses else "off ([engine.chunks] switches it on)"
    logger.info("embedded engine: loading %s; chunk reuse is %s", name, reuse)
    app = create_engine_app(with_events(engine_settings), reuses_chunks=reuses)
    with serve_in_thread(app) as url:
        logger.info("embedded engine: ready")
        serve_proxy(_in_front_of_engine(settings, url))


def _with_found_model(settings: EngineSettings) -> EngineSettings:
    """Find the model before PyTorch is loaded, so that a wrong name is refused at once."""
    if settings.is_builtin or settings.model is None:
        return settings
    directory = find_model(settings.model)
    check_model(directory, option="engine.model")
    return settings.model_copy(update={"model": directory})


def _in_front_of_engine(settings: Settings, url: str) -> Settings:
    capacity = settings.index.capacity_tokens or settings.engine.capacity_tokens
    drain_s = min(settings.proxy.drain_s, _EMBEDDED_DRAIN_S)
    interval_s = max(settings.router.health_interval_s, _EMBEDDED_HEALTH_S)
    return settings.model_copy(
        update={
            "backend": settings.backend.model_copy(update={"url": url, "dns": False, "file": None}),
            "backends": (),
            "proxy": settings.proxy.model_copy(update={"drain_s": drain_s}),
            "router": settings.router.model_copy(update={"health_interval_s": interval_s}),
            "index": settings.index.model_copy(update={"capacity_tokens": capacity}),
        }
    )


def engine(
    model: Path | None = setting("engine.model", metavar="MODEL"),
    host: str | None = setting("engine.host", metavar="ADDRESS"),
    port: int | None = setting("engine.port"),
    served_model_name: str | None = setting("engine.served_model_name"),
    capacity_tokens: int | None = setting("engine.capacity_tokens"),
    block_size: int | None = setting("engine.block_size"),
    max_model_len: int | None = setting("engine.max_model_len"),
    device: str | None = setting("engine.device"),
    dtype: str | None = setting("engine.dtype"),
    kv_events_endpoint: str | None = setting("engine.kv_events_endpoint"),
    config: Path | None = CONFIG,
) -> None:
    """Serve a Hugging Face model, or a small built-in one, with an exact prefix cache.

    The built-in model has random weights: its answers are meaningless. Every setting can also be
    given in ./ragboost.toml, another --config FILE, or the environment, for example as
    RAGBOOST_ENGINE__BLOCK_SIZE.

    \b
    ragboost engine                                   # the built-in model, on port 8000
    ragboost engine --model Qwen/Qwen3-0.6B --port 8001
    """
    flags = {f"engine.{name}": value for name, value in locals().items() if name != "config"}
    config = config or settings_file()
    loaded = load_settings(flags, toml=config)
    log_to_terminal(loaded.log)
    log_settings_file(config)
    settings = _with_found_model(loaded.engine)

    from ragboost.engine import create_engine_app
    from ragboost.proxy.serving import serve

    serve(create_engine_app(settings), host=settings.host, port=settings.port)


def _lint(log: Path, *, as_json: bool) -> NoReturn:
    from rich.console import Console

    from ragboost.proxy.hosted.report import lint_log

    report = lint_log(log)
    for reason in report.bad_lines:
        typer.echo(f"skipped: {reason}", err=True)
    if report.num_bad_lines > len(report.bad_lines):
        typer.echo(f"skipped: {report.num_bad_lines:,} lines in all", err=True)
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        if report.findings:
            Console().print(report.table())
        typer.echo(report.sentence())
    raise typer.Exit(1 if report.findings else 0)


def doctor(
    backend: list[str] | None = typer.Option(
        None, metavar="URL", help=_BACKEND, show_default=False
    ),
    kv_events: str | None = typer.Option(
        None, metavar="tcp://HOST:PORT", help="Address of the backend's KV events."
    ),
    log: Path | None = typer.Option(
        None,
        metavar="REQUESTS.jsonl",
        help="Instead, find what breaks prompt caches in a log of requests, one body per line.",
    ),
    trial: Path | None = typer.Option(
        None,
        "--try",
        metavar="REQUEST.json",
        help="Instead, show which documents are seen in the body of one request, and what would "
        "be sent; - reads standard input.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as one JSON object."),
    config: Path | None = CONFIG,
) -> None:
    """Check the backends, and say what to change.

    Sends each backend a few small requests. The exit code is 0 if everything works, else 1.

    With --log, compares each request of a file with the one before it in its conversation, and
    names the first byte that differs, the cause, and what it costs; and it names text that differs
    before the documents. The file may be a log of proxy.record. The exit code is 1 if a cached
    prefix was broken. It also counts what was seen of the requests' documents.

    With --try, needs no backend. It assumes that an earlier request brought the same documents in
    reverse order; --json has the whole body as it would be sent. The exit code is 1 if no documents
    are found. A running proxy answers the same at /ragboost/explain, with what it has learnt.

    \b
    ragboost doctor --backend http://127.0.0.1:8000
    ragboost doctor --log requests.jsonl
    ragboost doctor --try request.json
    """
    settings = load_settings(backends(backend), toml=config)
    files = [name for name, path in (("--log", log), ("--try", trial)) if path is not None]
    if len(files) > 1 or (files and (backend or kv_events is not None)):
        raise ConfigError(f"{files[0]} reads a file: give it alone, without --backend, say")
    if trial is not None:
        try_request(trial, settings, as_json=as_json)
    if log is not None:
        _lint(log, as_json=as_json)
    _examine(settings, kv_events=kv_events, as_json=as_json)


def _examine(settings: Settings, *, kv_events: str | None, as_json: bool) -> NoReturn:
    import asyncio

    from ragboost.proxy.doctor import examine, exit_code

    findings = asyncio.run(examine(settings, kv_events=kv_events))
    if as_json:
        typer.echo(json.dumps({"findings": [finding.as_json() for finding in findings]}))
    for finding in findings if not as_json else ():
        typer.echo(f"{finding.status:7} {finding.backend} {finding.check}: {finding.message}")
        if finding.fix:
            typer.echo(f"        {finding.fix}")
    raise typer.Exit(exit_code(findings))
