"""Count the tokens that reordered documents add to a prompt, by how they stand in its text.

    python -m benchmarks.language.note_tokens --model smollm2-135m --model qwen-0.5b --json

Documents of two sentences, each written at another place than the client's, where the client's
text asks for citations by number and where it does not. Tokens a document: the product's request
less the client's, all included. None:
the documents are not found.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import AutoTokenizer

from benchmarks.command import make_parser, model_directory, report, show_rows
from benchmarks.language.cases import CountTokens, token_counter
from benchmarks.language.rewritten import Body, rewrite
from ragboost.config.model_directory import model_name
from tests.fuzz.corpus import Doc
from tests.fuzz.texts.layouts import LAYOUTS, Layout

Pair = tuple[Body, Body]  # one that is cached, and the one to write
_NAMES = (
    *("<document>", "Open WebUI", "[1], blank lines", "wrapped [1]", "Document 1:"),
    *("AnythingLLM", "RAGFlow", "JSON objects", "Source/Content"),
)
_HEADS = {
    "cites": "Answer from these documents, and cite their numbers.\n\n",
    "plain": "Answer from these documents.\n\n",
}
_TAIL = "\n\nQuestion: Who keeps the {} at the {}?"
_THINGS = ("lease", "ledger", "key", "map", "seal", "bell", "net", "lamp", "chart", "rope")
_PLACES = ("harbour", "mill", "tower", "school", "market", "bridge", "inn", "farm", "yard", "lock")


def measure(
    counts: Mapping[str, CountTokens],
    *,
    documents: int,
    requests: int,
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
            written = rewrite(pairs)
            for model, count in counts.items():
                row[model] = _added(pairs, written, documents, count)
            rows.append(row)
    return rows


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


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=model_directory, action="append", required=True)
    parser.add_argument("--documents", type=int, default=5, help="of a request")
    parser.add_argument("--requests", type=int, default=20, help="of each layout")
    args = parser.parse_args()
    counts = {
        Path(model_name(model)).name: token_counter(AutoTokenizer.from_pretrained(model))
        for model in args.model
    }
    rows = measure(counts, documents=args.documents, requests=args.requests)
    report(rows, args, show_rows)


if __name__ == "__main__":
    main()
