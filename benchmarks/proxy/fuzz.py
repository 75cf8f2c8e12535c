"""Send random requests through the whole application, and compare what the backend receives.

    python -m benchmarks.proxy.fuzz --requests 1000000 --json
    python -m benchmarks.proxy.fuzz --http --episode 2500
    python -m benchmarks.proxy.fuzz --replay 2026.17.204
    python -m benchmarks.proxy.fuzz --replay 2026.t17.204

Runs `tests/fuzz` for as long as wanted: episodes of one app each, with random clients whose
documents name their owner, and an oracle that shares no code with the proxy. Counts documents that
are lost, doubled or another person's, labels and hints that name nothing, resent histories with
other bytes, and other changes. With `--http`, the proxy's server is between clients and app. A
failing case is SEED.EPISODE.REQUEST: `--replay` repeats its episode and prints the request, what
the backend received, and those before it of the conversation.

Every second episode is one of `tests/fuzz/texts`: documents whose contents are marks of all frames,
in the layouts of known applications; `--no-contents` leaves these out. Their cases have a `t`, and
faults of their own: documents that are cut or mixed, notes inside documents, changed texts.
"""

import argparse
import logging
import resource
import sys
import time
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.command import make_parser, report, show_rows
from tests.fuzz.driver import Episode, Report
from tests.fuzz.oracle import KINDS, Fault
from tests.fuzz.requests import Asked, Reply
from tests.fuzz.texts.applications import TextRequest
from tests.fuzz.texts.driver import TextEpisode
from tests.fuzz.texts.oracle import KINDS as TEXT_KINDS
from tests.fuzz.worlds import WORLDS

_SHOWN = 5
_KINDS = (*KINDS, *(kind for kind in TEXT_KINDS if kind not in KINDS))


def main() -> None:
    """Run the episodes and print; exit with 1 if a rule was broken."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="requests to send")
    parser.add_argument("--seed", type=int, default=2026, help="seed of the run")
    parser.add_argument("--episode", type=int, default=5_000, help="requests to one app")
    parser.add_argument("--http", action="store_true", help="send over HTTP, in eight worlds")
    parser.add_argument("--contents", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--replay", metavar="CASE", help="repeat a failing case instead")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # thousands of backends fail on purpose
    if options.replay:
        sys.exit(_replay(options.replay, is_served=options.http))
    result, found = _run(options)
    report(result, options, lambda _: _show(result, found))
    sys.exit(1 if found.failures else 0)


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], Report]:
    report, started = Report(), time.perf_counter()
    num_episodes, rss_mb_early = -(-options.requests // options.episode), None
    with _progress() as progress, suppress(KeyboardInterrupt):  # what was found until then counts
        task = progress.add_task("requests", total=options.requests, faults=0)
        for number in range(num_episodes):
            size = min(options.episode, options.requests - report.requests)
            _episode(options, number, size).run(report)
            faults = sum(report.counts.values())
            progress.update(task, completed=report.requests, faults=faults)
            if number == min(num_episodes, len(WORLDS)) - 1:
                rss_mb_early = _rss_mb()
    seconds = time.perf_counter() - started
    return {
        "requests": report.requests,
        "episodes": -(-report.requests // options.episode),
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "requests_per_s": round(report.requests / seconds, 1),
        "peak_rss_mb": _rss_mb(),
        "peak_rss_mb_after_one_of_each_world": rss_mb_early,
        "faults": {kind: report.counts[kind] for kind in _KINDS},
        "moves": dict(sorted(report.moves.items())),
        "first": [{"case": case, **fault._asdict()} for case, fault in _first(report)],
    }, report


def _episode(options: argparse.Namespace, number: int, size: int) -> Episode | TextEpisode:
    if not options.contents:
        return Episode(options.seed, number, size, options.http)
    kind = TextEpisode if number % 2 else Episode
    return kind(options.seed, number // 2, size, options.http)


def _first(report: Report) -> list[tuple[str, Fault]]:
    """Return the first failures of each kind."""
    by_kind = [
        [failure for failure in report.failures if failure[1].kind == kind] for kind in _KINDS
    ]
    return [failure for found in by_kind for failure in found[:_SHOWN]]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("faults: {task.fields[faults]}"),
        console=Console(stderr=True),
    )


def _rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _show(result: dict[str, Any], report: Report) -> None:
    rows = [{"broken rule": kind, "times": count} for kind, count in result["faults"].items()]
    show_rows(rows, f"{result['requests']:,} requests")
    print(f"{result['requests_per_s']} requests/s, peak RSS {result['peak_rss_mb']} MB")
    for case, fault in _first(report):
        seen = fault.detail.partition("\n--- client")[0]
        print(f"{case} {fault.kind}: {seen}")


def _replay(case: str, *, is_served: bool) -> int:
    """Repeat the case's episode up to its request; print the conversation. Return the exit code."""
    seed, number, last = (int(part) for part in case.replace("t", "").split("."))
    if "t" in case:
        return _replay_texts(case, TextEpisode(seed, number, last, is_served))
    seen: list[tuple[Asked, list[bytes], Reply]] = []
    report = Report()
    episode = Episode(seed, number, last, is_served)
    episode.run(report, see=lambda asked, sent, reply: seen.append((asked, sent, reply)))
    family = seen[-1][0].family
    for asked, sent, reply in seen:
        if asked.family is family:
            _print_request(asked, sent, reply)
    return _print_faults(case, report, world=episode.world.name)


def _replay_texts(case: str, episode: TextEpisode) -> int:
    """Repeat the case's episode up to its request; print that and its faults."""
    seen: list[tuple[TextRequest, bytes, Reply]] = []
    report = Report()
    episode.run(report, see=lambda asked, sent, reply: seen.append((asked, sent, reply)))
    asked, sent, reply = seen[-1]
    print(f"client:  {asked.body}\nbackend: {sent.decode()}\nheaders: {reply.headers}")
    return _print_faults(case, report, world=episode.world.name)


def _print_faults(case: str, report: Report, *, world: str) -> int:
    faults = [fault for name, fault in report.failures if name == case]
    for fault in faults or [Fault("none", "the case does not fail, or failed before")]:
        # Lone surrogates are part of some texts.
        seen = fault.detail.encode(errors="backslashreplace").decode()
        print(f"{case} in {world!r}: {fault.kind}: {seen}")
    return 1 if faults else 0


def _print_request(asked: Asked, sent: list[bytes], reply: Reply) -> None:
    headers = {name.decode(): value.decode() for name, value in asked.headers}
    print(f"--- {asked.number} {asked.move} {asked.shape.name} {asked.path} {headers}")
    print(f"client:  {asked.body}")
    for body in sent:
        print(f"backend: {body.decode()}")
    print(f"status:  {reply.status}\n")


if __name__ == "__main__":
    main()
