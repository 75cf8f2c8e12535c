"""Lint a log of requests: sum up what breaks the prompt cache, and what that costs."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ragboost.config import Settings
from ragboost.errors import RagBoostError, RequestError
from ragboost.proxy.hosted.causes import MENDS, Cause
from ragboost.proxy.hosted.comparison import PrefixBreak, find_break
from ragboost.proxy.hosted.conversations import LastPrompts
from ragboost.proxy.hosted.prompt import (
    PROMPTS,
    conversation_name,
    estimate_tokens,
    prompt_bytes,
)
from ragboost.requests.formats import Detection, Format, make_formats
from ragboost.requests.formats.detection import DetectionCounts
from ragboost.requests.headers import printable
from ragboost.requests.json_body import JsonBody, MalformedBodyError
from ragboost.requests.parsed_request import parse_request
from ragboost.requests.recorded_request import RecordedRequest
from ragboost.util.jsonl import Line, decode, read_lines

_MAX_EXAMPLES = 3
_MAX_FINDINGS = 1000
_MAX_BAD_LINES = 20
_MAX_LINE_BYTES = 64 * 1024 * 1024


@dataclass
class LintFinding:
    """All breaks of one cause in one kind of place."""

    cause: Cause
    place: str
    times: int = 0
    lost_tokens: int = 0  # estimated, computed again because of them
    # The first ones, each with the lines of the two requests.
    examples: list[tuple[str, str, PrefixBreak]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "cause": str(self.cause),
            "place": self.place,
            "times": self.times,
            "lost_tokens": self.lost_tokens,
            "advice": MENDS[self.cause],
            "examples": [
                {
                    "earlier": earlier,
                    "later": later,
                    "path": found.path,
                    "byte": found.offset,
                    "prompt_byte": found.equal_bytes,
                    "before": found.before,
                    "after": found.after,
                }
                for earlier, later, found in self.examples
            ],
        }


@dataclass
class LintReport:
    """The findings of a log."""

    requests: int = 0
    continued: int = 0  # requests with an earlier one of their conversation
    prompt_tokens: int = 0  # estimated, of all requests
    bad_lines: list[str] = field(default_factory=list)  # no requests; the first ones, with reasons
    num_bad_lines: int = 0
    detections: DetectionCounts = field(default_factory=DetectionCounts)  # of their documents
    _findings: dict[tuple[Cause, str], LintFinding] = field(default_factory=dict)

    @property
    def findings(self) -> list[LintFinding]:
        return sorted(self._findings.values(), key=lambda finding: -finding.lost_tokens)

    def add_bad_line(self, reason: str) -> None:
        self.num_bad_lines += 1
        if len(self.bad_lines) < _MAX_BAD_LINES:
            self.bad_lines.append(reason)

    def add(self, earlier: str, later: str, found: PrefixBreak) -> None:
        place = found.place
        if (found.cause, place) not in self._findings and len(self._findings) >= _MAX_FINDINGS:
            place = "other"
        finding = self._findings.setdefault((found.cause, place), LintFinding(found.cause, place))
        lost = estimate_tokens(found.lost_bytes)
        finding.times += 1
        finding.lost_tokens += lost
        if len(finding.examples) < _MAX_EXAMPLES:
            finding.examples.append((earlier, later, found))

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "continued": self.continued,
            "prompt_tokens": self.prompt_tokens,
            "lost_tokens": sum(finding.lost_tokens for finding in self.findings),
            "bad_lines": self.num_bad_lines,
            "findings": [finding.as_json() for finding in self.findings],
            "detections": self.detections.as_json(),
        }

    def table(self) -> Table:
        table = Table(title="What breaks the prompt cache")
        for name in ("cause", "place", "times", "lost tokens"):
            table.add_column(name, justify="left" if name in ("cause", "place") else "right")
        table.add_column("first example")
        for finding in self.findings:
            earlier, later, found = finding.examples[0]
            where = f"{later} {found.path} byte {found.offset}, against {earlier}"
            row = [str(finding.cause), finding.place]
            row += [f"{finding.times:,}", f"{finding.lost_tokens:,}"]
            shown = f"{where}\n- {found.before!r}\n+ {found.after!r}\n{MENDS[finding.cause]}"
            table.add_row(*row, shown.replace("[", r"\["))
        return table

    def sentence(self) -> str:
        lost = sum(finding.lost_tokens for finding in self.findings)
        share = lost / self.prompt_tokens if self.prompt_tokens else 0.0
        return (
            f"{self.requests:,} requests, {self.continued:,} of them continue a conversation; "
            f"about {lost:,} tokens ({share:.1%} of all) could have been read from the cache."
            + "".join([f"\n{printable(line)}" for line in self.detections.lines()])
        )


def lint_log(path: Path) -> LintReport:
    """Compare consecutive requests of each conversation in a log.

    Args:
        path: JSONL, also compressed with gzip, of request bodies, of objects with one, or a log of
            `proxy.record`, in which only lengths can be seen.

    Raises:
        RequestError: the file cannot be read, or none of its lines is a request.
    """
    report, prompts = LintReport(), LastPrompts()
    formats = make_formats(Settings())
    for line in read_lines(path, max_bytes=_MAX_LINE_BYTES):
        logged = _read(line, report)
        if isinstance(logged, RecordedRequest):
            report.requests += 1
            report.prompt_tokens += logged.prompt_tokens
            detection = Detection(logged.detection, logged.frame, len(logged.doc_ids))
            report.detections.add(detection)
        elif logged is not None:
            _compare(logged, prompts, report)
            report.detections.add(_detection(logged.body.raw, formats))
    if not report.requests:
        reason = report.bad_lines[0] if report.bad_lines else f"{path} has no lines"
        raise RequestError(f"no request found; {reason}")
    return report


class _LoggedRequest(NamedTuple):
    body: JsonBody
    name: str  # of its conversation; empty if it is not named
    where: str


def _compare(logged: _LoggedRequest, prompts: LastPrompts, report: LintReport) -> None:
    body = logged.body
    report.requests += 1
    report.prompt_tokens += estimate_tokens(prompt_bytes(body.raw_fields))
    pair = prompts.replace(body, name=logged.name, where=logged.where)
    if pair is None:
        return
    report.continued += 1
    if (found := find_break(pair)) is not None:
        report.add(pair.before.where, logged.where, found)


def _detection(raw: bytes, formats: tuple[Format, ...]) -> Detection:
    try:
        return parse_request(raw, (), formats=formats).detection
    except MalformedBodyError:  # the proxy would forward it as it is
        return Detection("malformed_body")
    except RagBoostError:
        return Detection("refused")


def _read(line: Line, report: LintReport) -> _LoggedRequest | RecordedRequest | None:
    if len(line.raw) > _MAX_LINE_BYTES:
        report.add_bad_line(f"{line.where}: longer than {_MAX_LINE_BYTES} bytes")
        return None
    try:
        row = decode(line.raw)
        if isinstance(row, dict) and (recorded := RecordedRequest.of(row)) is not None:
            return recorded
        inner = _body_of(row) if isinstance(row, dict) else {}
        if any(inner.get(name) for name in PROMPTS):
            raw = line.raw if inner is row else json.dumps(inner).encode()
            return _LoggedRequest(JsonBody(raw), conversation_name(row, inner), line.where)
    except (RequestError, MalformedBodyError, RecursionError) as error:
        report.add_bad_line(f"{line.where}: {str(error) or 'nested too deeply'}")
        return None
    report.add_bad_line(f"{line.where}: no request with `messages`, `input` or `prompt`")
    return None


def _body_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request in a line, which may be the line's object itself."""
    for name in ("body", "request", "request_body"):
        if isinstance(inner := row.get(name), dict):
            return inner
    return row
