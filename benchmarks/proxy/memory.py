"""Measure the memory of conversations and of the context index, and the pauses to collect garbage.

    python -m benchmarks.proxy.memory --json
    python -m benchmarks.proxy.memory --sessions 10000 --nodes 100000

Each kind is filled in a process of its own; figures are differences of its resident set.
Conversations go through the proxy's rewriting: one turn each, with documents in a
`ragboost` object, and the index that they fill. `kept_mb` is the part that `session.max_bytes`
bounds, the text of their rewritten messages. The index gets sequences of shared documents, with and
without the settings of `ragboost serve` for the garbage collector.
"""

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.command import make_parser, report, show_rows
from ragboost.booster import Booster
from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.formats import make_formats
from ragboost.proxy.memory import short_collections
from ragboost.rewriting.history import History
from ragboost.rewriting.parsed_request import ParsedRequest, parse_request
from ragboost.rewriting.rewriter import Rewriting
from ragboost.rewriting.sent_history import Conversation
from ragboost.types import Document
from scripts.processes import exit_on_sigterm

_DOCUMENTS = 10  # of a conversation, and of a sequence in the index
_WORDS = 60
_POOL = 5_000


def main() -> None:
    """Measure and print, or measure one kind in this process (its name as first argument)."""
    if sys.argv[1:2] and sys.argv[1] in _KINDS:
        print(json.dumps(_KINDS[sys.argv[1]](int(sys.argv[2]))))
        return
    parser = make_parser(__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="conversations of each kind")
    parser.add_argument("--nodes", type=int, default=100_000, help="nodes of the context index")
    args = parser.parse_args()
    exit_on_sigterm()
    result = {}
    for kind in _KINDS:
        num = args.nodes if kind.startswith("nodes") else args.sessions
        command = [sys.executable, "-m", "benchmarks.proxy.memory", kind, str(num)]
        result[kind] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    report(result, args, show)


def show(result: dict[str, Any]) -> None:
    for kind, figures in result.items():
        show_rows([figures], kind)


def _library_sessions(num: int) -> dict[str, Any]:
    """Fill the library's own store of sessions."""
    with _grown() as figures:
        booster = Booster(Settings(session={"max_sessions": num}))  # type: ignore[arg-type]
        for number, documents in enumerate(_requests(num)):
            booster.boost("why?", [Document(text) for text in documents], session=f"s{number}")
        figures["num"] = num
    return figures


def _conversations(num: int) -> dict[str, Any]:
    """Fill the history with the conversations that requests name."""
    settings = Settings(session={"max_sessions": num})  # type: ignore[arg-type]
    with _grown() as figures:
        formats, tenants = make_formats(settings), Tenants(settings)
        kept = History(settings.session)
        for number, documents in enumerate(_requests(num)):
            request = parse_request(_body(documents, session_id=f"s{number}"), [], formats=formats)
            booster = tenants.get(request.tenant_key).booster("b")
            kept.add(_rewritten(request, kept.known(request.chain), booster).delta)
        figures |= {"num": len(kept), "kept_mb": _mb(kept.num_bytes)}
    return figures


def _rewritten(request: ParsedRequest, conversation: Conversation, booster: Booster) -> Rewriting:
    template = booster.settings.hints.label_template
    return Rewriting(request, conversation, label_template=template).boost(booster)


def _nodes(num: int) -> dict[str, Any]:
    """Fill the index with the collector's settings of `serve`."""
    with short_collections():
        return _filled_index(num)


def _nodes_without_freezing(num: int) -> dict[str, Any]:
    """Fill the index with Python's own settings of the collector."""
    return _filled_index(num)


def _filled_index(num: int) -> dict[str, Any]:
    pauses: list[float] = []
    started = 0.0

    def watch(phase: str, _info: dict[str, Any]) -> None:
        nonlocal started
        if phase == "start":
            started = time.thread_time()
        else:
            pauses.append(time.thread_time() - started)

    with _grown() as figures:
        index, rng = Booster().index, random.Random(0)
        keys = [f"{number:032x}" for number in range(_POOL)]
        gc.callbacks.insert(0, watch)
        while index.num_nodes < num:
            index.insert(rng.sample(keys, _DOCUMENTS), _LENGTHS)
        gc.callbacks.remove(watch)
        figures["num"] = index.num_nodes
    figures["longest_collection_ms"] = round(max(pauses) * 1e3, 1)
    figures["all_collections_ms"] = round(sum(pauses) * 1e3, 1)
    return figures


@contextmanager
def _grown() -> Iterator[dict[str, Any]]:
    """Add to the figures by how much the process has grown, while what was filled is there."""
    figures: dict[str, Any] = {}
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    yield figures
    figures["rss_mb"] = _mb(process.memory_info().rss - before)


def _requests(num: int) -> Iterator[list[str]]:
    rng = random.Random(0)
    pool = [f"Document {number}. " + "some words " * (_WORDS // 2) for number in range(_POOL)]
    for _ in range(num):
        yield rng.sample(pool, _DOCUMENTS)


def _body(documents: list[str], **options: str) -> bytes:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "why?"}],
        "ragboost": {"documents": documents, **options},
    }
    return json.dumps(body).encode()


def _mb(num_bytes: int) -> float:
    return round(num_bytes / 1e6, 1)


_LENGTHS = [_WORDS] * _DOCUMENTS
_KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sessions_library": _library_sessions,
    "conversations": _conversations,
    "nodes": _nodes,
    "nodes_default_collector": _nodes_without_freezing,
}


if __name__ == "__main__":
    main()
