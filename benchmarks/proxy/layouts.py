"""Find out which layouts of documents the proxy sees in texts, and from which request on.

    python -m benchmarks.proxy.layouts --json

26 layouts, each in a message of the user and in the system message: ten requests with four of ten
documents through `ragboost serve`, once with documents of one paragraph and once with some of two
or three. Prints the first request in which all four documents are found, the first one from which
on they always are, and if every document was whole in every request. Every cell is a tenant of its
own.
"""

import argparse
import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from benchmarks.proxy.recorded import Exchange, RecordedProxy, recorded_proxy
from tests.fuzz.corpus import Doc
from tests.fuzz.texts.layouts import ISSUE_LAYOUTS, OTHER_LAYOUTS, Layout
from tests.fuzz.texts.oracle import Reader, Text, difference

_TEXT = (
    "lease tenant rent ledger harbour signed clause winter paid copper archive letter river bridge "
    "garden notice deposit witness market stone engine paper under before seven second north held "
    "the the of of and in to a was is for with by from after which that year month flat house town"
)
_WORDS = _TEXT.split()
_PLACES = ("user", "system")
_LENGTHS = ("one paragraph", "some paragraphs")
_POOL, _GIVEN = 10, 4
_BY = 7  # request by which a layout should be found
_USER = ("Use these documents to answer the question.\n\n", "\n\nQuestion: {}")
_SYSTEM = ("You answer with the documents below.\n\n", "")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=10, help="requests per cell")
    parser.add_argument("--others", action="store_true", help="further layouts of applications")
    parser.add_argument("--only", default="", help="layouts whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    report(measure(args), args, show)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Send the requests of every cell."""
    layouts = [*ISSUE_LAYOUTS, *(OTHER_LAYOUTS if args.others else ())]
    chosen = [layout for layout in layouts if args.only in layout.name]
    with recorded_proxy() as proxy:
        rows = [
            _cell(proxy, layout, place, length=length, args=args)
            for length, layout, place in itertools.product(_LENGTHS, chosen, _PLACES)
        ]
    return {
        "requests": args.requests,
        "seed": args.seed,
        "by": _BY,
        "found": {length: _num_found(rows, length, "found_first") for length in _LENGTHS},
        "found_for_good": {length: _num_found(rows, length, "found_from") for length in _LENGTHS},
        "cells": {length: sum(row["length"] == length for row in rows) for length in _LENGTHS},
        "not_whole": sum(bool(row["faults"]) for row in rows),
        "rows": rows,
    }


def _num_found(rows: Sequence[dict[str, Any]], length: str, since: str) -> int:
    return sum(row["length"] == length and 0 < row[since] <= _BY for row in rows)


def _cell(
    proxy: RecordedProxy, layout: Layout, place: str, *, length: str, args: argparse.Namespace
) -> dict[str, Any]:
    rng = random.Random(f"{args.seed}.{layout.name}.{place}.{length}")
    pool = [_document(rng, number, length) for number in range(_POOL)]
    counts, outcomes, faults = [], [], []
    for number in range(args.requests):
        documents = tuple(rng.sample(pool, _GIVEN))
        question = f"What follows from clause {number * 7 % 10} and its notice, number {number}?"
        text, body = _request(layout, place, documents, question)
        exchange = proxy.post(body, key=f"{layout.name} {place} {length}".encode().hex())
        counts.append(exchange.num_documents)
        outcomes.append(exchange.outcome)
        faults += _faults(text, exchange, number)
    return {
        "layout": layout.name,
        "place": place,
        "length": length,
        "found_first": counts.index(_GIVEN) + 1 if _GIVEN in counts else 0,
        "found_from": _found_from(counts),
        "outcomes": outcomes,
        "faults": faults[:3],
    }


def _document(rng: random.Random, number: int, length: str) -> Doc:
    def paragraph() -> str:
        sentences = (" ".join(rng.choices(_WORDS, k=rng.randint(8, 16))) for _ in range(6))
        return " ".join(f"{sentence.capitalize()}." for sentence in sentences)

    many = rng.choice((1, 1, 2, 3)) if length != _LENGTHS[0] else 1
    text = "\n\n".join(paragraph() for _ in range(many))
    name = f"{rng.choice(_WORDS)}-{rng.choice(_WORDS)}.md"
    return Doc("layouts", number, name, f"{rng.choice(_WORDS).capitalize()} {number + 3}", text)


def _request(
    layout: Layout, place: str, documents: tuple[Doc, ...], question: str
) -> tuple[Text, dict[str, Any]]:
    head, tail = _USER if place == "user" else _SYSTEM
    text = Text(head, tail.format(question), layout, documents)
    messages = [{"role": place, "content": text.written}]
    if place == "system":
        messages.append({"role": "user", "content": question})
    return text, {"model": "m", "messages": messages}


def _faults(text: Text, exchange: Exchange, number: int) -> list[str]:
    if exchange.status != 200:
        return [f"request {number + 1}: status {exchange.status}"]
    received = json.loads(exchange.received)["messages"][0]["content"]
    found = Reader(has_documents=True).check(text, received)
    seen = difference(text.written, received)
    return [f"request {number + 1}: {fault.kind}: {seen}" for fault in found]


def _found_from(counts: Sequence[int]) -> int:
    """Return the first request (from 1) from which on all documents are found, or 0."""
    missed = [at for at, count in enumerate(counts, 1) if count != _GIVEN]
    last = missed[-1] if missed else 0
    return 0 if last == len(counts) else last + 1


def show(result: dict[str, Any]) -> None:
    for length in _LENGTHS:
        rows = [row for row in result["rows"] if row["length"] == length]
        if rows:
            found = f"{result['found'][length]} of {result['cells'][length]} found"
            for_good = f"{result['found_for_good'][length]} for good"
            show_rows(_pairs(rows), f"{length}: {found} by request {_BY}, {for_good}")
    for row in result["rows"]:
        for fault in row["faults"]:
            print(f"{row['layout']}, {row['place']}, {row['length']}: {fault}")


def _pairs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the places of a layout in one row."""
    shown = []
    for user, system in zip(rows[::2], rows[1::2], strict=True):
        row = {"layout": user["layout"]}
        for cell in (user, system):
            found = f"{cell['found_first'] or '-'} / {cell['found_from'] or '-'}"
            row[f"{cell['place']}: first, for good"] = found
            row[f"{cell['place']}: last"] = cell["outcomes"][-1]
            row[f"{cell['place']}: whole"] = "no" if cell["faults"] else "yes"
        shown.append(row)
    return shown


if __name__ == "__main__":
    main()
