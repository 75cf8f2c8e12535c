"""Run the offline job over a file: read it into memory, plan it, write it in release order."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ragboost.batch.files import new_files, open_input, output_paths
from ragboost.batch.lines import BatchLine, LineParser, encode_json, kept
from ragboost.batch.plan import FilePlan, plan_file, predict
from ragboost.batch.requests import EVERY, BatchRequests, Progress, read_requests
from ragboost.batch.simulate import HitRate, SimulatedCache
from ragboost.booster.compose import Retrieved, compose
from ragboost.booster.context import Context
from ragboost.booster.session_state import CarriedDocuments
from ragboost.config import Settings
from ragboost.dedup import unique_documents
from ragboost.errors import RequestError
from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.requests.formats.detection import ADVICE, FOUND


@dataclass(frozen=True)
class BatchSummary:
    requests: int
    rejected: int  # malformed lines
    problem: str  # of the first of them
    documents: int  # documents in the requests, as given
    duplicates_removed: int  # documents removed because their request repeats them
    blank_removed: int  # documents removed because they have no text
    requests_reordered: int  # requests whose documents are in another order
    # Requests in which documents were found, and by reason those in which none were.
    detections: Mapping[str, int]
    cache_tokens: int | None  # capacity of the simulated prefix cache; None if unbounded
    before: HitRate  # predicted hit rate of the input
    after: HitRate  # predicted hit rate of the output

    def detections_sentence(self) -> str:
        """Say in how many requests no documents were found, why, and what helps."""
        missing = {name: num for name, num in self.detections.items() if name != FOUND}
        parts = [
            f"{num:,} {name} ({ADVICE[name]})" if name in ADVICE else f"{num:,} {name}"
            for name, num in sorted(missing.items(), key=lambda item: -item[1])
        ]
        found = self.detections.get(FOUND, 0)
        rest = f"; the others are as they came: {', '.join(parts)}" if parts else ""
        return f"documents found in {found:,} of {self.requests:,} requests{rest}"

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("before", "after"):
            rate: HitRate = getattr(self, name)
            fields[name] = {
                "hit_rate": round(rate.hit_rate, 4),
                "cached_tokens": rate.cached_tokens,
                "prompt_tokens": rate.prompt_tokens,
            }
        return fields


def rejects_sentence(rejected: int, problem: str, rejects: Path) -> str:
    """Say how many lines are malformed, why the first is, and where all of them are."""
    return f"malformed lines: {rejected:,}, see {rejects}; {problem}"


_NO_HISTORY = CarriedDocuments(known={}, carried={}, is_empty=True, is_complete=True, owners={})


class RejectedLinesError(RequestError):
    """A strict job found malformed lines, or any job nothing else."""


def run_batch(
    source: Path,
    output: Path,
    *,
    settings: Settings | None = None,
    corpus: Corpus | None = None,
    cache_tokens: int | None = None,
    memory_mb: int | None = None,
    strict: bool = False,
    keep: Sequence[Path] = (),
    on_progress: Progress = lambda *_: None,
) -> BatchSummary:
    """Order a file of requests.

    Writes `output` in release order, and beside it `*.positions.jsonl` (the input line of each
    output line and the new order of its documents) and `*.rejects.jsonl` (malformed lines with
    number and error). Each file is complete or absent. Unchanged lines keep their bytes.

    `cache_tokens` (None: unbounded) are of the prediction, which counts whole documents.
    A file that needs more memory than `memory_mb` (None: any) is refused. With `strict`, malformed
    lines fail the job, as always if there is no other line. `keep` are further files that it must
    not overwrite.
    """
    settings = settings or Settings()
    SimulatedCache({}, capacity_tokens=cache_tokens)  # checks it
    if memory_mb is not None and memory_mb < 1:
        raise RequestError(f"memory_mb must be at least 1, got {memory_mb}", param="memory_mb")
    output, positions, rejects = output_paths(output, inputs=[source, *keep])
    parser = LineParser(settings, corpus=corpus)
    with open_input(source) as file, new_files(rejects) as [rejects_file]:
        requests = read_requests(
            file,
            parser,
            settings=settings,
            on_progress=on_progress,
            rejects=rejects_file,
            memory_mb=memory_mb,
        )
        has_failed = requests.rejected > 0 and (strict or not requests.lines)
        if not has_failed:
            on_progress("planning", 0, 1)
            plan = plan_file(requests, settings.ordering)
            on_progress("planning", 1, 1)
            summary = _summary(requests, plan, cache_tokens=cache_tokens)
            with new_files(output, positions) as files:
                writer = _Writer(parser, settings, *files)
                writer.write(requests, plan, on_progress=on_progress)
    if has_failed:
        said = rejects_sentence(requests.rejected, requests.problem, rejects)
        raise RejectedLinesError(f"{source}: {said}")
    return summary


class _Writer:
    def __init__(
        self, parser: LineParser, settings: Settings, output: BinaryIO, positions: BinaryIO
    ) -> None:
        self._parser = parser
        self._settings = settings
        self._output = output
        self._positions = positions

    def write(self, requests: BatchRequests, plan: FilePlan, *, on_progress: Progress) -> None:
        total = len(plan.release)
        for number, position in enumerate(plan.release, 1):
            raw = requests.lines[position]
            line = self._parser.parse(raw)
            context = self._context(line, plan.permutations[position])
            value = line.write(context)
            self._output.write(_verbatim(raw) if value == line.value else encode_json(value))
            self._output.write(b"\n")
            where = {
                "input_line": requests.input_lines[position],
                "output_line": number,
                "id": line.id,
                "documents": kept(context, line.blank) if context else [],
            }
            self._positions.write(encode_json(where) + b"\n")
            if number % EVERY == 0 or number == total:
                on_progress("writing", number, total)

    def _context(self, line: BatchLine, permutation: Sequence[int]) -> Context | None:
        if not line.documents:
            return None
        settings = self._settings if line.is_boost_wanted else _as_they_are(self._settings)
        unique = unique_documents(line.documents) if settings.dedup.enabled else line.documents
        retrieved = Retrieved(line.query, line.documents, unique, (), ())
        return compose(retrieved, permutation, history=_NO_HISTORY, settings=settings)


def _summary(requests: BatchRequests, plan: FilePlan, *, cache_tokens: int | None) -> BatchSummary:
    num_documents = sum(map(len, requests.documents))
    return BatchSummary(
        requests=len(requests.documents),
        rejected=requests.rejected,
        problem=requests.problem,
        documents=num_documents,
        duplicates_removed=num_documents - sum(map(len, plan.permutations)),
        blank_removed=requests.num_blank,
        requests_reordered=sum(list(p) != sorted(p) for p in plan.permutations),
        detections=dict(requests.detections),
        cache_tokens=cache_tokens,
        before=predict(requests, None, cache_tokens=cache_tokens),
        after=predict(requests, plan, cache_tokens=cache_tokens),
    )


def _as_they_are(settings: Settings) -> Settings:
    return settings.model_copy(
        update={
            "dedup": settings.dedup.model_copy(update={"enabled": False}),
            "hints": settings.hints.model_copy(update={"order": False}),
        }
    )


def _verbatim(raw: bytes) -> bytes:
    return raw.rstrip(b"\r\n").removeprefix(codecs.BOM_UTF8)
