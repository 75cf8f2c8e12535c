"""Measure `ragboost batch` on large files: time, peak memory, and the loss of planning in windows.

    python -m benchmarks.scale.batch --lines 1000000 --windows 10000 100000 0 --folder FOLDER

Writes a file of generated requests (`workloads`), then runs the command on it, once per window
size; 0 is the whole file. What the folder has already is not made or measured again. Lines have ids
of a corpus, or with `--words` the texts themselves. Hit rates are simulated here for the whole
output, across the borders of the windows. Counts are exact; times and memory are of the command's
process.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.workloads import Workload, generate
from benchmarks.parts import part
from ragboost.simulate import HitRate, SimulatedCache
from scripts.processes import exit_on_sigterm

_FILE = "requests-{lines}-{workload}-{words}.jsonl"
# Between this process and the command: a child's peak memory begins with that of its parent.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""
_WORDS = ("the", "lease", "was", "signed", "in", "spring", "and", "names", "both", "parties")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--workload", choices=("zipf", "topics", "neardup"), default="zipf")
    parser.add_argument("--windows", type=int, nargs="+", default=[10_000, 0], help="0: whole file")
    parser.add_argument("--words", type=int, default=0, help="of each text in the lines; 0: ids")
    parser.add_argument("--cache-tokens", type=int, default=400_000)
    parser.add_argument("--folder", type=Path, required=True, help="for the files; they stay")
    args = parser.parse_args()
    exit_on_sigterm()
    workload = generate(args.workload, args.lines)
    rows = measure(
        workload, args.windows, words=args.words, cache_tokens=args.cache_tokens, folder=args.folder
    )
    result = {"workload": args.workload, "lines": args.lines, "words": args.words, "rows": rows}
    report(result, args, show)


def measure(
    workload: Workload, windows: list[int], *, words: int, cache_tokens: int, folder: Path
) -> list[dict[str, Any]]:
    """Run the command once per window size; hit rates are of the output, and plain of the input."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / f"corpus-{workload.name}.jsonl"
    source = folder / _FILE.format(
        lines=len(workload.contexts), workload=workload.name, words=words
    )
    if not source.exists():
        write_corpus(workload, corpus)
        write_requests(workload, source, words=words)

    def replay_input() -> list[float]:
        orders = (list(map(int, context)) for context in workload.contexts)  # type: ignore[call-overload]
        return [replay(orders, workload, cache_tokens).hit_rate]

    def row(window: int) -> list[dict[str, Any]]:
        output = source.with_name(f"ordered-{window}-{source.name}")
        options = ["--window", str(window)] if window else []
        if not words:
            options += ["--corpus", str(corpus)]
        measured = run(source, output, *options, "--cache-tokens", str(cache_tokens))
        rate = replay(read_orders(output), workload, cache_tokens).hit_rate
        file_mb = round(source.stat().st_size / 1e6)
        return [{"window": window, "file_mb": file_mb, **measured, "hit_rate": round(rate, 4)}]

    name = f"{source.stem}-{cache_tokens}"
    plain = round(part(folder, f"plain-{name}", replay_input)[0], 4)
    rows = [part(folder, f"row-{window}-{name}", partial(row, window))[0] for window in windows]
    return [{**each, "plain_hit_rate": plain} for each in rows]


def write_corpus(workload: Workload, path: Path) -> None:
    """Write the documents, with about as many tokens as the workload says."""
    with _whole(path) as file:
        for name, tokens in sorted(workload.tokens.items(), key=lambda item: str(item[0])):
            file.write(json.dumps({"id": name, "text": _text(name, 4 * tokens // 5)}) + "\n")


def write_requests(workload: Workload, path: Path, *, words: int) -> None:
    """Write one line per request, of ids, or of texts with so many words."""
    with _whole(path) as file:
        for number, context in enumerate(workload.contexts):
            line: dict[str, Any] = {"id": number, "question": f"Question {number}?"}
            if words:
                line["documents"] = [{"id": name, "text": _text(name, words)} for name in context]
            else:
                line["doc_ids"] = context
            file.write(json.dumps(line) + "\n")


def read_orders(path: Path) -> Iterator[list[int]]:
    """Yield the documents of each request of an output, in prompt order."""
    with path.open() as file:
        for line in map(json.loads, file):
            ids = line.get("doc_ids")
            yield ids if ids is not None else [document["id"] for document in line["documents"]]


def replay(orders: Iterator[list[int]], workload: Workload, cache_tokens: int) -> HitRate:
    """Return the hit rate of all requests in one cache."""
    cache = SimulatedCache(workload.tokens, capacity_tokens=cache_tokens)
    cached = prompt = 0
    for order in orders:
        used = cache.request(order)
        cached, prompt = cached + used.cached_tokens, prompt + used.prompt_tokens
    return HitRate(cached, prompt)


def run(source: Path, output: Path, *options: str) -> dict[str, Any]:
    """Run the command, and return its time, its memory and its number of windows.

    Raises:
        SystemExit: it failed; its message has been printed.
    """
    command = [sys.executable, "-m", "ragboost", "batch", str(source), "-o", str(output)]
    command += ["--memory", "1000000", "--no-progress", "--json", *options]
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURED, *command], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            text, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise SystemExit(process.returncode)
    *result, used = text.splitlines()
    cpu_s, peak_kb = used.split()
    return {
        "windows": json.loads(b"".join(result))["windows"],
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(float(cpu_s), 1),
        "peak_rss_mb": round(int(peak_kb) / 1024),
    }


@contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    """Open a file that gets its name when it is complete."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w") as file:
        yield file
    unfinished.rename(path)


def _text(name: object, words: int) -> str:
    rng = random.Random(str(name))
    return " ".join([f"Document {name}.", *rng.choices(_WORDS, k=words)])


def show(result: dict[str, Any]) -> None:
    rows = [{**row, "window": row["window"] or "whole"} for row in result["rows"]]
    show_rows(rows, f"{result['workload']}: {result['lines']:,} lines")


if __name__ == "__main__":
    main()
