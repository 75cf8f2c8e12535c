"""Read traces of requests without texts: RAGPulse, Mooncake's, and logs of `proxy.record`. A part
of a prompt is an id and a length in tokens; equal ids are equal texts."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.errors import RequestError
from ragboost.requests.recorded_request import MAX_TOKENS, RecordedRequest
from ragboost.util.bounded_map import BoundedMap
from ragboost.util.jsonl import decode, read_lines

_MAX_LINE_BYTES = 4 * 1024 * 1024
_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MOONCAKE_BLOCK = 512
_LENGTHS = "token_lengths.json"
# Each with a space before it is one token for most tokenizers of language models.
_COMMON = (
    "the of and to in is that for it was on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also "
    "around another came come work three word must because does part even place well such here "
    "take why things help put years different away again off went old number great tell men say "
    "small every found still between name should home big give air line set own under read last "
    "never us left end along while might "
)
_WORDS = tuple(_COMMON.split())


class TracePart(NamedTuple):
    """A part of a prompt; of parts with one name the text is the same."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request, its parts in prompt order."""

    arrival_s: float  # since the first request of the trace
    before: tuple[TracePart, ...]
    documents: tuple[TracePart, ...]
    behind: tuple[TracePart, ...]
    output_tokens: int = 0  # 0: unknown

    @property
    def parts(self) -> tuple[TracePart, ...]:
        return (*self.before, *self.documents, *self.behind)

    @property
    def prompt_tokens(self) -> int:
        return sum([part.tokens for part in self.parts])


def read_trace(path: Path, *, limit: int | None = None) -> list[TraceRequest]:
    """Read the first requests of a trace, also gzipped; RAGPulse's may be its folder. Raises
    `RequestError`, which names the line."""
    path = _trace_file(path)
    requests = list(islice(_requests(path), limit))
    if not requests:
        raise RequestError(f"{path} has no requests")
    start = min(request.arrival_s for request in requests)
    requests.sort(key=lambda request: request.arrival_s)
    return [_shifted(request, start) for request in requests]


def _trace_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("trace.jsonl.gz", "trace.jsonl"):
        if (path / name).is_file():
            return path / name
    raise RequestError(f"{path} has neither trace.jsonl.gz nor trace.jsonl")


def _shifted(request: TraceRequest, start: float) -> TraceRequest:
    parts = request.before, request.documents, request.behind
    return TraceRequest(request.arrival_s - start, *parts, request.output_tokens)


def _requests(path: Path) -> Iterator[TraceRequest]:
    lengths: Mapping[str, int] | None = None
    for line in read_lines(path, max_bytes=_MAX_LINE_BYTES):
        row = decode(line.raw, where=line.where)
        try:
            if isinstance(row, dict) and "passages_ids" in row:
                lengths = _read_lengths(path.parent) if lengths is None else lengths
                request = _ragpulse(row, lengths)
            elif isinstance(row, dict) and "hash_ids" in row:
                request = _mooncake(row)
            elif isinstance(row, dict) and (recorded := RecordedRequest.of(row)) is not None:
                request = _recorded(recorded, line.number)
            else:
                raise RequestError(
                    "no request of a known trace: RAGPulse, Mooncake or proxy.record"
                )
        except RequestError as error:
            raise RequestError(f"{line.where}: {error}") from None
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RequestError(
                f"{line.where}: a field is missing or malformed: {error!r}"
            ) from None
        if not 0 < request.prompt_tokens <= MAX_TOKENS:
            raise RequestError(
                f"{line.where}: a prompt must have 1 to {MAX_TOKENS:,} tokens, got "
                f"{request.prompt_tokens:,}"
            )
        yield request


def _read_lengths(folder: Path) -> Mapping[str, int]:
    for name in (f"{_LENGTHS}.gz", _LENGTHS):
        if (folder / name).is_file():
            text = b"".join([line.raw for line in read_lines(folder / name)])
            lengths = decode(text, where=str(folder / name))
            if isinstance(lengths, dict):
                return lengths
    raise RequestError(f"{folder} has no {_LENGTHS} with the lengths of the parts")


def _ragpulse(row: Mapping[str, Any], lengths: Mapping[str, int]) -> TraceRequest:
    def parts(*fields: str) -> tuple[TracePart, ...]:
        names = [str(name) for field in fields for name in row[field]]
        return tuple([TracePart(name, _length(lengths[name])) for name in names])

    behind = parts("history", "web_search", "user_input")
    inside = parts("sys_prompt"), parts("passages_ids"), behind
    return TraceRequest(float(row["t_s"]), *inside, _length(row["output_tokens"]))


def _mooncake(row: Mapping[str, Any]) -> TraceRequest:
    """Read a request whose blocks are named by all before them, so that no part can move."""
    names, left = [f"block {number}" for number in row["hash_ids"]], _length(row["input_length"])
    parts = []
    for name in names:
        parts.append(TracePart(name, min(left, _MOONCAKE_BLOCK)))
        left -= parts[-1].tokens
    parts.append(TracePart(f"behind {' '.join(names[-1:])}", left))
    output_tokens = _length(row["output_length"])
    return TraceRequest(float(row["timestamp"]) / 1000, tuple(parts), (), (), output_tokens)


def _recorded(record: RecordedRequest, number: int) -> TraceRequest:
    scope = f"{record.tenant} {record.head}"
    head = TracePart(f"head {scope}", record.head_tokens)
    documents = [TracePart(*each) for each in zip(record.doc_ids, record.doc_tokens, strict=True)]
    tail = TracePart(f"tail {number}", record.tail_tokens)
    return TraceRequest(record.t_s, (head,), tuple(documents), (tail,))


def _length(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"a length must be 0 to {MAX_TOKENS:,}, got {json.dumps(value)[:40]}")
    return value


class TraceTexts:
    """The texts of a trace's parts: random words, the same whenever a part returns."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self._scale = scale
        self._texts: BoundedMap[TracePart, str] = BoundedMap(
            max_entries=100_000, max_size=_MAX_TEXT_BYTES
        )

    def of(self, part: TracePart) -> str:
        """Return a text of at least one word; empty for a part of no tokens."""
        if not part.tokens:
            return ""
        text = self._texts.get(part)
        if text is None:
            count = max(1, round(part.tokens * self._scale))
            seed = part.name.encode("utf-8", "surrogatepass")
            text = " ".join(random.Random(seed).choices(_WORDS, k=count))
            self._texts.put(part, text, size=len(text))
        return text

    def messages(self, request: TraceRequest) -> list[dict[str, str]]:
        """Return a request's chat: system text with the documents in tags, then all else."""
        tagged = "\n".join([f"<document>{self.of(part)}</document>" for part in request.documents])
        system = "\n\n".join([*self._all(request.before), *([tagged] if tagged else [])])
        user = "\n\n".join(self._all(request.behind)) or "Go on."
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]

    def _all(self, parts: Sequence[TracePart]) -> list[str]:
        return [text for part in parts if (text := self.of(part))]
