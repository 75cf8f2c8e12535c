"""Measure the processor time of extracting and replacing documents, by body format and size.

    python -m benchmarks.proxy.formats --json

Times `extract` and `replace` in microseconds on decoded JSON, with the documents in reverse order;
JSON decoding and encoding are not included.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from ragboost.config import Settings
from ragboost.context import Context
from ragboost.formats import UnknownShapeError, find_format, make_formats

SIZES = {"45k": 45_000, "400k": 400_000}
_DOCUMENT_CHARS = 3000
_WORDS = ("lease", "rent", "tenant", "owner", "clause", "deposit", "notice", "month", "garden")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=31, help="repeats per shape and size")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    result = measure(repeats=args.repeats, seed=args.seed)
    report(result, args, show)


def measure(*, repeats: int, seed: int) -> dict[str, Any]:
    """Time every shape at every size, interleaved.

    `no_documents` is text without documents, `hostile_*` is text crafted to be slow to scan.
    """
    rng = random.Random(seed)
    bodies = {
        name: {size: make(_documents(rng, chars)) for size, chars in SIZES.items()}
        for name, make in SHAPES.items()
    }
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for _ in range(repeats):
        for name, sizes in bodies.items():
            for size, body in sizes.items():
                extract, replace, num = _time(body)
                times.setdefault((name, size), []).append((extract, replace))
                numbers[name, size] = num
    shapes: dict[str, dict[str, Any]] = {}
    for (name, size), measured in times.items():
        extracts, replaces = zip(*measured, strict=True)
        shapes.setdefault(name, {})[size] = {
            "documents": numbers[name, size],
            "extract_us": round(statistics.median(extracts) * 1e6, 1),
            "replace_us": round(statistics.median(replaces) * 1e6, 1),
        }
    return {"repeats": repeats, "shapes": shapes}


def _time(body: dict[str, Any]) -> tuple[float, float, int]:
    formats = make_formats(Settings())
    started = time.process_time()
    try:
        hit = find_format(formats, body)
    except UnknownShapeError:  # the proxy forwards such a body as it is
        hit = None
    extract = time.process_time() - started
    if hit is None:
        return extract, 0.0, 0
    shape, found = hit
    documents = tuple(reversed(found.documents))
    positions = tuple(range(len(documents) - 1, -1, -1))
    labels = tuple(f"[Doc_{document.label}]" for document in documents)
    context = Context(found.query, documents, found.documents, positions, labels)
    started = time.process_time()
    shape.replace(body, found, context)
    replace = time.process_time() - started
    return extract, replace, len(documents) + found.num_later


def _documents(rng: random.Random, chars: int) -> list[str]:
    def document() -> str:
        return " ".join(rng.choices(_WORDS, k=_DOCUMENT_CHARS // 7))

    return [document() for _ in range(chars // _DOCUMENT_CHARS)]


def _user(text: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def _xml(documents: Sequence[str]) -> dict[str, Any]:
    blocks = "\n".join(
        f'<document index="{i}"><source>{i}.txt</source><document_content>{text}'
        "</document_content></document>"
        for i, text in enumerate(documents, 1)
    )
    return _user(f"<documents>\n{blocks}\n</documents>\n\nWhy?")


def _llama_index(documents: Sequence[str]) -> dict[str, Any]:
    dashes = "\n---------------------\n"
    nodes = "\n\n".join(f"file_path: {i}.txt\n\n{text}" for i, text in enumerate(documents))
    return _user(f"Context information is below.{dashes}{nodes}{dashes}Query: Why?\nAnswer: ")


def _tool(documents: Sequence[str]) -> dict[str, Any]:
    content = json.dumps([{"text": text, "score": 0.5} for text in documents])
    tool = {"role": "tool", "tool_call_id": "c", "content": content}
    again = {**tool, "content": json.dumps([{"text": text} for text in documents[:2]])}
    return {"messages": [{"role": "user", "content": "Why?"}, tool, again]}


def _blocks(documents: Sequence[str]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
        for text in documents
    ]
    return _user([*blocks, {"type": "text", "text": "Why?"}])


def _numbered(form: str) -> Callable[[Sequence[str]], dict[str, Any]]:
    def make(documents: Sequence[str]) -> dict[str, Any]:
        blocks = "\n\n".join(f"{form.format(i)} {text}" for i, text in enumerate(documents, 1))
        return _user(f"{blocks}\n\nQuestion: why?")

    return make


def _repeated(text: str) -> Callable[[Sequence[str]], dict[str, Any]]:
    def make(documents: Sequence[str]) -> dict[str, Any]:
        length = sum(map(len, documents))
        return _user(text * (length // len(text)))

    return make


SHAPES: dict[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    "ragboost_object": lambda texts: _user("Why?", ragboost={"documents": list(texts)}),
    "documents_field": lambda texts: _user("Why?", documents=[{"text": text} for text in texts]),
    "xml_tags": _xml,
    "numbered": _numbered("Document {}:"),
    "labelled": _numbered("[Doc_{}]"),
    "llama_index": _llama_index,
    "langchain": lambda texts: _user(
        "Use the following pieces of context to answer the question.\n----------------\n"
        + "\n\n".join(f"Source: {i}\nContent: {text}" for i, text in enumerate(texts))
    ),
    "json_results": _tool,
    "content_blocks": _blocks,
    "no_documents": lambda texts: _user("\n\n".join(texts)),
    "hostile_open_tags": _repeated("<document "),
    "hostile_tags": _repeated("<document a='\">"),
    "hostile_runs": _repeated("<doc>a</doc><doc>b</doc>x"),
    "hostile_labels": _repeated("\nDocument 1: a b"),
    "hostile_headers": _repeated("\n-----\nfile_path: a\n\n"),
}


def show(result: dict[str, Any]) -> None:
    rows = [
        {"shape": name, "size": size, **row}
        for name, sizes in result["shapes"].items()
        for size, row in sizes.items()
    ]
    show_rows(rows)


if __name__ == "__main__":
    main()
