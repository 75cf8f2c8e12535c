"""How applications lay documents out in a text: one row per layout, from their public defaults.

A unit is one document with its marks. Its holes: `§n` the number of the place, `§name` and
`§title` of the document, which belong to it wherever it stands, and `§text`.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.fuzz.corpus import Doc

_HOLE = re.compile("§(name|title|text|n)")

Kind = Literal["mark", "n", "name", "title", "text"]


class Part(NamedTuple):
    """A piece of a unit: a fixed mark, or what fills a hole."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Layout:
    """One way to lay out documents.

    Attributes:
        name: for reports.
        unit: one document, with holes.
        between: what separates units.
        before: the beginning of the container.
        after: its end.
        first: number of the first place.
        encode: writes texts and names inside the marks.
        is_json: the list is a JSON value.
    """

    name: str
    unit: str
    between: str = "\n\n"
    before: str = ""
    after: str = ""
    first: int = 1
    encode: Callable[[str], str] = str
    is_json: bool = False

    @property
    def has_numbers(self) -> bool:
        """The units count."""
        return "n" in _HOLE.findall(self.unit)

    @property
    def is_bare(self) -> bool:
        """Documents have no marks: a list in one of them is a list of the text."""
        return self.unit == "§text" and self.between.isspace()

    @property
    def is_headed(self) -> bool:
        """Only the next header ends a document: in a tool's result, one in a document is one of
        the text, as the documentation says."""
        return self.unit.endswith(("\nContent: §text", "\nText: §text"))

    def parts(self, document: Doc, place: int) -> tuple[Part, ...]:
        """Return a document's unit at a place (from 0), in parts."""
        return tuple(self._parts(document, str(self.first + place)))

    def write(self, documents: Sequence[Doc]) -> str:
        """Return the whole list."""
        units = (
            "".join(part.text for part in self.parts(document, place))
            for place, document in enumerate(documents)
        )
        return f"{self.before}{self.between.join(units)}{self.after}"

    def _parts(self, document: Doc, number: str) -> Iterator[Part]:
        values = {
            "n": number,
            "name": self.encode(str(document.id)),
            "title": self.encode(document.title or "untitled"),
            "text": self.encode(document.text),
        }
        for at, piece in enumerate(_HOLE.split(self.unit)):
            if at % 2:
                yield Part(piece, values[piece])  # type: ignore[arg-type]
            elif piece:
                yield Part("mark", piece)


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_json_unescaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _in_repr(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


_DASHES = "-" * 21
_ONE_RULE = "-" * 30  # a document that holds it, too, looks like the end of the frame
_STUFF = "Use the following pieces of context to answer the question."
_SOURCE = '<source id="§n" name="§name">§text</source>'

ISSUE_LAYOUTS = (
    Layout("blank lines", "§text"),
    Layout("---", "§text", "\n\n---\n\n"),
    Layout("[1], blank lines", "[§n] §text"),
    Layout("[1], lines", "[§n] §text", "\n"),
    Layout("1.", "§n. §text"),
    Layout("Source/Content", "Source: §name\nContent: §text"),
    Layout("Title/Score/Text", "Title: §title\nScore: 0.83\nText: §text"),
    Layout("##", "## §title\n\n§text"),
    Layout("###", "### §name\n§text"),
    Layout("bullets", "- §text", "\n"),
    Layout(
        "JSON objects",
        '{"id": "§name", "text": "§text"}',
        ", ",
        "[",
        "]",
        encode=_in_json,
        is_json=True,
    ),
    Layout("JSON strings", '"§text"', ", ", "[", "]", encode=_in_json, is_json=True),
    Layout(
        "LangChain's repr",
        "Document(metadata={'source': '§name'}, page_content='§text')",
        ", ",
        "[",
        "]",
        encode=_in_repr,
    ),
    Layout("=== f ===", "=== §name ===\n§text"),
    Layout("name and fence", "§name\n```\n§text\n```"),
    Layout("<doc>", "<doc>§text</doc>", "\n"),
    Layout("<document>", '<document id="§name">\n§text\n</document>', "\n"),
    Layout("### Document 1: t", "### Document §n: §title\n§text"),
    Layout("Document 1:", "Document §n: §text"),
    Layout("Passage 1:", "Passage §n:\n§text"),
    Layout("Open WebUI", _SOURCE, "\n", "<context>\n", "\n</context>"),
    Layout("AnythingLLM", "[CONTEXT §n]:\n§text\n[END CONTEXT §n]", first=0, after="\n\n"),
    Layout(
        "RAGFlow",
        "\nID: §n\n├── Title: §name\n└── Content:\n§text\n",
        "\n------\n",
        "------\n",
        "\n------\n",
        first=0,
    ),
    Layout("文档1：", "文档§n：§text"),
    Layout("Document 1：", "Document §n：§text", "\n"),
    Layout("Cline", '<file_content path="src/§name">\n§text\n</file_content>'),
)
"""The layouts that issue 40 asks for, in its order."""

OTHER_LAYOUTS = (
    Layout("Dify", "§text", "\n", "<context>\n", "\n</context>"),
    Layout(
        "FastGPT",
        '{\n  "id": "§n",\n  "sourceName": "§name",\n  "content": "§text"\n}',
        "\n------\n",
        "<Reference>\n",
        "\n</Reference>",
        encode=_in_json_unescaped,
    ),
    Layout("Perplexica", "§n. §title §text", "\n", "<context>\n", "\n</context>"),
    Layout(
        "LobeChat",
        '<chunk fileId="§name" fileName="§name">§text</chunk>',
        "\n",
        "<retrieved_chunks>\n",
        "\n</retrieved_chunks>",
    ),
    Layout(
        "LibreChat",
        "<document>\n<filename>§name</filename>\n<context>§text</context>\n</document>",
        "\n",
        "<documents>\n",
        "\n</documents>",
    ),
    Layout(
        "Anthropic's documents",
        '<document index="§n">\n<source>§name</source>\n<document_content>\n§text\n'
        "</document_content>\n</document>",
        "\n",
        "<documents>\n",
        "\n</documents>",
    ),
    Layout(
        "LlamaIndex with metadata",
        "file_path: docs/§name\n\n§text",
        before=f"{_DASHES}\n",
        after=f"\n{_DASHES}",
    ),
    Layout("LlamaIndex", "§text", before=f"{_DASHES}\n", after=f"\n{_DASHES}"),
    Layout(
        "LlamaIndex citations",
        "Source §n:\n§text\n",
        "\n",
        "------\n",
        "\n------",
    ),
    Layout("wrapped [1]", "[§n] §text", "\n", "<documents>\n", "\n</documents>"),
    Layout("DSPy", "[§n] «§text»", "\n"),
    Layout("(1)", "(§n) §text"),
    Layout("#1", "#§n §text"),
    Layout("【資料1】", "【資料§n】\n§text", "\n\n"),
    Layout("Dokument 1:", "Dokument §n: §text"),
    Layout("[Doc_1]", "[Doc_§n] §text", "\n"),
    Layout("any tag", '<beleg nr="§n" datei="§name">§text</beleg>', "\n"),
    Layout("tags with hyphens", "<kb-item><t>§title</t>§text</kb-item>", "\n"),
    Layout("BEGIN and END", "--- BEGIN §name ---\n§text\n--- END §name ---", "\n"),
    Layout("**file**", "**§name**\n\n§text"),
    Layout("table", "| §name | §text |", "\n", "| file | text |\n|---|---|\n"),
    Layout(
        "JSON lines",
        '{"title": "§title", "content": "§text", "score": 0.5}',
        "\n",
        encode=_in_json,
    ),
    Layout(
        "JSON results",
        '{"text": "§text", "source": "§name"}',
        ", ",
        '{"results": [',
        "]}",
        encode=_in_json,
        is_json=True,
    ),
    Layout(
        "Windows tags",
        '<document id="§name">\r\n§text\r\n</document>',
        "\r\n",
    ),
    Layout("Windows labels", "Document §n: §text", "\r\n\r\n"),
    Layout("***", "§text", "\n***\n"),
    Layout("[1] between rules", "[§n] §text", "\n\n---\n\n", "<context>\n", "\n</context>"),
    Layout("rules around labels", "Source §n: §text", "\n------\n", "------\n", "\n------"),
    Layout("0:", "§n: §text", first=0),
    Layout("LangChain chat", "Source: §name\nContent: §text", before=f"{_STUFF}\n{'-' * 16}\n"),
    Layout("LangChain chat, numbered", "[§n] §text", before=f"{_STUFF}\n{'-' * 16}\n"),
    Layout("below one rule", "Source: §name\nContent: §text", before=f"Context:\n{_ONE_RULE}\n"),
    Layout("numbers below one rule", "[§n] §text", before=f"Context:\n{_ONE_RULE}\n"),
    Layout(
        "LangChain stuff",
        "Title: §title\nText: §text",
        before=f"{_STUFF}\n\n",
        after="\n\nQuestion: who?\nHelpful Answer:",
    ),
    Layout("Ref lines", "Ref §n (§name)\n§text\n----", "\n"),
)
LAYOUTS = (*ISSUE_LAYOUTS, *OTHER_LAYOUTS)
