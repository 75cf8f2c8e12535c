"""`ragboost doctor --try`: show what RAGBoost sees in one request, on a terminal or as JSON."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ragboost.config import Settings
from ragboost.errors import RequestError

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
            with path.open("rb") as file:
                raw = file.read(limit + 1)
    except OSError as error:
        raise RequestError(f"--try: cannot read {path}: {error.strerror}") from None
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
