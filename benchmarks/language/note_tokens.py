"""Count the tokens that reordered documents add to a prompt, by how they stand in its text.

    python -m benchmarks.language.note_tokens --model smollm2-135m --model qwen-0.5b --json
    python -m benchmarks.language.note_tokens --model ... --before CHECKOUT

Documents of two sentences, each written at another place than the client's, where the client's
text asks for citations by number and where it does not. Tokens a document: the product's request
less the client's, all included. None: the documents are not found. Then forty requests with some
of ten documents, one after the other: tokens of the prompts, and those of them that an unbounded
prefix cache with blocks of 16 tokens does not hold.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import AutoTokenizer

from benchmarks.command import make_parser, model_directory, report, show_rows
from benchmarks.language.cases import CountTokens
from benchmarks.language.rewritten import Body, rewrite, rewrite_all
from ragboost.config.model_directory import model_name
from tests.fuzz.corpus import Doc
from tests.fuzz.texts.layouts import LAYOUTS, Layout

Encode = Callable[[str], Sequence[int]]
Pair = tuple[Body, Body]  # one that is cached, and the one to write
_NAMES = (
    *("<document>", "Open WebUI", "[1], blank lines", "wrapped [1]", "Document 1:"),
    *("AnythingLLM", "RAGFlow", "JSON objects", "Source/Content"),
)
_HEADS = {
    "cites": "Answer from these documents, and cite their numbers.\n\n",
    "plain": "Answer from these documents.\n\n",
}
_POOL, _REQUESTS, _BLOCK = 10, 40, 16  # of the sequence
_TAIL = "\n\nQuestion: Who keeps the {} at the {}?"
_THINGS = ("lease", "ledger", "key", "map", "seal", "bell", "net", "lamp", "chart", "rope")
_PLACES = ("harbour", "mill", "tower", "school", "market", "bridge", "inn", "farm", "yard", "lock")


def measure(
    counts: Mapping[str, CountTokens],
    *,
    documents: int,
    requests: int,
    before: Path | None = None,
) -> list[dict[str, Any]]:
    """Return the added tokens a document for each layout, text around it, and model.

    Args:
        counts: by the name of a model.
        documents: of a request.
        requests: of each layout.
    """
    layouts = {layout.name: layout for layout in LAYOUTS}
    rows = []
    for name in _NAMES:
        for kind, head in _HEADS.items():
            pairs = _pairs(layouts[name], head, documents=documents, requests=requests)
            row: dict[str, Any] = {"layout": name, "text": kind}
            for label, checkout in _products(before):
                written = rewrite(pairs, checkout=checkout)
                for model, count in counts.items():
                    row[f"{model}_{label}"] = _added(pairs, written, documents, count)
            rows.append(row)
    return rows


def _products(before: Path | None) -> list[tuple[str, Path | None]]:
    return [*([("before", before)] if before else ()), ("after", None)]


def _pairs(layout: Layout, head: str, *, documents: int, requests: int) -> list[Pair]:
    rng, pairs = random.Random(layout.name), []
    for _ in range(requests):
        given = [_document(rng, at) for at in range(documents)]
        cached = list(given)
        while any(a is b for a, b in zip(cached, given, strict=True)):
            rng.shuffle(cached)
        tail = _TAIL.format(rng.choice(_THINGS), rng.choice(_PLACES))
        earlier, body = (_body(head + layout.write(listed) + tail) for listed in (cached, given))
        pairs.append((earlier, body))
    return pairs


def _document(rng: random.Random, at: int) -> Doc:
    thing, place = rng.choice(_THINGS), rng.choice(_PLACES)
    text = (
        f"The {thing} number {rng.randint(100, 999)} is kept at the {place} of the old town. "
        f"It was signed by the keeper in {rng.randint(1800, 1999)} and never moved."
    )
    return Doc("notes", at, f"{thing}-{at}.md", f"The {thing} of the {place} {at}", text)


def _body(text: str) -> Body:
    return {"messages": [{"role": "user", "content": text}]}


def _added(
    pairs: Sequence[Pair], written: Sequence[Body], num: int, count: CountTokens
) -> float | None:
    texts = [(_text(new), _text(body)) for (_, body), new in zip(pairs, written, strict=True)]
    moved = [(count(new) - count(text)) / num for new, text in texts if new != text]
    return round(fmean(moved), 2) if moved else None


def _text(body: Body) -> str:
    return str(body["messages"][0]["content"])


def compute(
    encoders: Mapping[str, Encode], *, documents: int, before: Path | None = None
) -> list[dict[str, Any]]:
    """Return the tokens of prompts, and those of them that a prefix cache does not hold, for each
    layout and model: the client's requests, and as a product writes them."""
    layouts = {layout.name: layout for layout in LAYOUTS}
    rows = []
    for name in _NAMES:
        bodies = _sequence(layouts[name], documents=documents)
        sent = {"client": bodies}
        for label, checkout in _products(before):
            (sent[label],) = rewrite_all([bodies], checkout=checkout)
        for model, encode in encoders.items():
            row: dict[str, Any] = {"layout": name, "model": model}
            for label, written in sent.items():
                prompts = [encode(_text(body)) for body in written]
                row[f"{label}_prompt"] = sum(map(len, prompts))
                row[f"{label}_computed"] = _computed(prompts)
            rows.append(row)
    return rows


def _sequence(layout: Layout, *, documents: int) -> list[Body]:
    rng = random.Random(layout.name)
    pool = [_document(rng, at) for at in range(_POOL)]
    bodies = []
    for _ in range(_REQUESTS):
        given = rng.sample(pool, documents)
        tail = _TAIL.format(rng.choice(_THINGS), rng.choice(_PLACES))
        bodies.append(_body(_HEADS["cites"] + layout.write(given) + tail))
    return bodies


def _computed(prompts: Iterable[Sequence[int]]) -> int:
    """Return the tokens beyond the longest prefix, in whole blocks, that an earlier prompt had."""
    cached: set[tuple[int, ...]] = set()
    num = 0
    for prompt in prompts:
        blocks = [tuple(prompt[:end]) for end in range(_BLOCK, len(prompt) + 1, _BLOCK)]
        num += len(prompt) - _BLOCK * sum(block in cached for block in blocks)
        cached.update(blocks)
    return num


def _counter(encode: Encode) -> CountTokens:
    return lambda text: len(encode(text))


def _encoder(model: Path) -> Encode:
    return partial(AutoTokenizer.from_pretrained(model).encode, add_special_tokens=False)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=model_directory, action="append", required=True)
    parser.add_argument("--documents", type=int, default=5, help="of a request")
    parser.add_argument("--requests", type=int, default=20, help="of each layout")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="of an earlier product")
    args = parser.parse_args()
    encoders = {Path(model_name(model)).name: _encoder(model) for model in args.model}
    result = {
        "added": measure(
            {name: _counter(encode) for name, encode in encoders.items()},
            documents=args.documents,
            requests=args.requests,
            before=args.before,
        ),
        "sequence": compute(encoders, documents=args.documents, before=args.before),
    }
    report(result, args, lambda tables: [show_rows(rows, name) for name, rows in tables.items()])


if __name__ == "__main__":
    main()
