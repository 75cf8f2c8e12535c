"""Texts of documents that are hard to tell from the marks around documents.

Draws from the marks of all frames, from our own labels, notes and hints, from files that contain
lists, and from the other documents of the pool. Every text is a lawful document.
"""

import json
import random
from collections.abc import Callable, Sequence

from tests.fuzz.corpus import Doc
from tests.fuzz.texts.layouts import LAYOUTS

_TEXT = (
    "lease tenant rent ledger harbour signed clause winter paid copper archive letter river bridge "
    "garden notice deposit witness market stone engine paper under before seven second north held"
)
_WORDS = _TEXT.split()
_NAMES = ("lease.md", "notes/rent.txt", "a b.pdf", "main.py", "Bericht_2024.docx", "合同.pdf")
_TITLES = ("Lease", "Rent in 2024", "1. Terms", "The «mill»", "Pets & dogs", "第二章")
_ODD_NAMES = ('say "no".md', "a]b.md", "x</source>.md", "--- 2 ---", "{n}", "Document 2")

# `#` stands for a small number, `~` for some words.
MARKS = (
    *("<doc>", "</doc>", "<document>", "</document>", '<document id="#">', "</source>", "<a>"),
    *('<source id="#">', '<source id="#" name="f.pdf">~</source>', "<context>", "</context>"),
    *("<doc>~</doc>", "<document>~</document>\n<document>~</document>", "<passage>", "</chunk>"),
    *('<file_content path="x.py">', "</file_content>", "<br/>", "<beleg>", "</beleg>", "<![CDATA["),
    *("</document>\n<document>", "</source>\n<source>", "</chunk>\n<chunk>"),
    *("</kb-item>\n<kb-item>", "</document_content>", "</context>\n</document>\n<document>"),
    *("<!-- ~ -->", "</", "<", "<documents>", "</documents>", "<search_result>~</search_result>"),
    *("[#]", "[#] ~", "(#)", "#. ~", "#) ~", "#.", "##", "## ~", "### ~", "# ~", "### Document #"),
    *("Document #: ~", "Document #:", "Document [#]", "Passage #:", "Source #:", "文档#：~"),
    *("Document #：~", "【資料#】", "Dokument #: ~", "[Doc_#] ~", "[Doc_a]", "Source: ~"),
    *("Content: ~", "Title: ~", "Score: 0.#", "Text: ~", "Source: {'f': #}\nContent: ~"),
    *("ID: #", "├── Title: ~", "└── Content:", "[CONTEXT #]:", "[END CONTEXT #]", "file_path: ~"),
    *("---", "------", "-" * 16, "-" * 21, "===", "=== f.md ===", "***"),
    *("```", "```python", "~~~", "- ~"),
    *("* ~", "- [ ] ~", "| ~ | ~ |", "|---|---|", "a.py\n```\n~\n```", "**f.md**"),
    *("Answer:", "Answer: ~", "Question:", "Question: ~?", "Task: ~", "Instruction: ~", "Query: ~"),
    *("问题：~", "Context:", "# Question", "Human: ~", "Assistant: ~", "Q: ~?\nA: ~."),
    *('{"text": "~"}', '[{"text": "~"}, {"text": "~"}]', '["~", "~"]', '"', "'", '"}, {"text": "'),
    *("[", "]", "{", "}", '", "', "\\", '\\"', "Document(metadata={}, page_content='~')", "'), "),
    *("--- BEGIN f ---", "--- END f ---", "<|im_start|>", "{question}", "%s", "§text", "«~»"),
    # ours
    "Please refer to [Doc_#] in the previous conversation.",
    "Please refer to all documents in the previous conversation.",
    'Please refer to the document that begins with "~" in the previous conversation.',
    "Documents by relevance, most relevant first: document # >> document 1",
    'Documents by relevance, most relevant first: "f.md" >> "g.md"',
    "Cite documents by their numbers: Document 78a4a727 is Document #.",
    "[Same as tool result # above.]",
    "Document 78a4a727: ~",
)
_SINGLE_MARKS = tuple(mark for mark in MARKS if mark.count("~") < 2)  # that are no list
_SPACES = (
    "\u200f",
    "\u202e~\u202c",
    "\u2066",
    "\u00a0",
    "\u2028",
    "\x85",
    "\x0b",
    "\ufeff",
    "\x00",
)
_SURROGATES = ("\ud800", "\udfff", "\ud83d")


class Contents:
    """Draw documents for one pool.

    Args:
        rng: the only source of chance.
        owner: name in the documents' markers.
        has_lists: some documents are lists of small documents.
        has_headers: some documents have what `Layout.is_headed` has.
    """

    def __init__(
        self, rng: random.Random, owner: str, *, has_lists: bool = True, has_headers: bool = True
    ) -> None:
        self._rng = rng
        self._owner = owner
        self._has_lists = has_lists
        self._layouts = [each for each in LAYOUTS if has_headers or not each.is_headed]
        marks = MARKS if has_lists else _SINGLE_MARKS
        self._marks = [mark for mark in marks if has_headers or "\nContent:" not in mark]
        self._texts: list[str] = []
        self._kinds: Sequence[tuple[float, Callable[[], str]]] = (
            (0.20, self._plain),
            (0.26, self._marked),
            (0.10, self._faq),
            (0.12 * has_lists, self._list),
            (0.10, self._file),
            (0.04 * has_lists, self._divided),
            (0.03, self._torn),
            (0.10, self._relative),
            (0.06, self._odd),
            (0.03, self._short),
            (0.03, self._again),
        )

    def draw(self, number: int) -> Doc:
        """Return one more document."""
        rng = self._rng
        text = rng.choices(self._kinds, [weight for weight, _ in self._kinds])[0][1]()
        if rng.random() < 0.08:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        if rng.random() < 0.05:
            text = rng.choice(("\n", " ", "\n\n", "\t")) + text + rng.choice(("", "\n", " \n\n"))
        self._texts.append(text)
        odd = rng.random() < 0.03
        name = rng.choice(_ODD_NAMES) if odd else f"{number}-{rng.choice(_NAMES)}"
        return Doc(self._owner, number, name, f"{rng.choice(_TITLES)} ({number})", text)

    def prose(self) -> str:
        """Return a text that holds no list."""
        return self._rng.choice((self._plain, self._faq))()

    def sentence(self) -> str:
        """Return a sentence of ordinary words."""
        return f"{' '.join(self._rng.choices(_WORDS, k=self._rng.randint(6, 14))).capitalize()}."

    def _sentences(self, few: int = 3, many: int = 8) -> list[str]:
        marker = f"@{self._owner}.{len(self._texts)}@"
        made = [self.sentence() for _ in range(self._rng.randint(few, many))]
        return [f"Entry {marker} says: {made[0]}", *made[1:]]

    def mark(self) -> str:
        """Return a mark of any frame, with its holes filled."""
        rng = self._rng
        text = rng.choice(self._marks)
        while "~" in text:
            text = text.replace("~", " ".join(rng.choices(_WORDS, k=rng.choice((1, 3, 6)))), 1)
        return text.replace("#", str(rng.randint(0, 6))) if "##" not in text else text

    def _plain(self) -> str:
        return self._rng.choice((" ", "\n", "\n\n")).join(self._sentences())

    def _marked(self) -> str:
        """Put marks anywhere: in a line, at its beginning, on a line of their own, at the ends."""
        rng, pieces = self._rng, self._sentences()
        mark = self.mark()
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            if rng.random() < 0.4:
                mark = self.mark()
            at = rng.choice((0, len(pieces), rng.randint(0, len(pieces))))
            gap = rng.choice((" ", "\n", "\n", "\n\n"))
            pieces.insert(at, f"{gap}{mark}{rng.choice((' ', gap, gap))}")
        return _joined(pieces)

    def _faq(self) -> str:
        rng = self._rng
        ask, answer = rng.choice(
            (("Question: ", "Answer: "), ("Q: ", "A: "), ("", "Answer: "), ("### ", ""))
        )
        gap = rng.choice(("\n", "\n\n"))
        pairs = (
            f"{ask}{self.sentence()[:-1]}?{gap}{answer}{self.sentence()}"
            for _ in range(rng.randint(1, 4))
        )
        return f"{self._sentences(1, 2)[0]}\n\n" + "\n\n".join(pairs)

    def _list(self) -> str:
        """Write a list of small documents in any layout, inside this one."""
        rng = self._rng
        layout = rng.choice(self._layouts)
        small = [
            Doc(self._owner, i, f"part-{i}.md", f"Part {i}", " ".join(self._sentences(1, 4)))
            for i in range(rng.randint(2, 4))
        ]
        if rng.random() < 0.3:
            small.append(small[0])
        before, after = (rng.choice(("", f"{self.sentence()}\n\n")) for _ in range(2))
        return f"{before}{layout.write(small)}{after and chr(10) + after.strip()}"

    def _file(self) -> str:
        """Return a pasted file: code, XML, JSON, a log, a table, a patch."""
        return write_file(
            self._rng,
            [self.sentence() for _ in range(self._rng.randint(3, 6))],
            kinds=range(8) if self._has_lists else range(2, 6),
        )

    def _divided(self) -> str:
        """Write a list between rules, or end with one."""
        rng = self._rng
        rule = rng.choice(("---", "***", "======", "------", "-" * 16, "-" * 21))
        listed = self._list()
        return rng.choice(
            (
                f"{self.sentence()}\n\n{rule}\n{listed}\n\n{rule}\n{self.sentence()}",
                f"{listed}\n{rule}",
                f"{rule}\n{self.sentence()}\n{rule}",
                f"{self._sentences(2, 3)[0]}\n\n{rule}",
            )
        )

    def _torn(self) -> str:
        """Return one half of a pasted file, as a splitter would."""
        text = self._file()
        at = self._rng.randint(len(text) // 4, 3 * len(text) // 4)
        return self._rng.choice((text[:at], text[at:]))

    def _relative(self) -> str:
        """Return a part of another document, or one with another in it."""
        rng = self._rng
        if not self._texts:
            return self._plain()
        other = rng.choice(self._texts)
        paragraphs = other.split("\n\n")
        return rng.choice(
            (
                other[: len(other) // 2],
                other[len(other) // 2 :],
                rng.choice(paragraphs),
                "\n\n".join(paragraphs[:-1]) or other,
                f"{other}\n\n{self.sentence()}",
                f"{self.sentence()}\n\n{other}",
                f"{other}\n{self.mark()}",
                f"{other} {self.sentence()}",
            )
        )

    def _odd(self) -> str:
        rng, pieces = self._rng, self._sentences()
        for _ in range(rng.randint(1, 3)):
            signs = _SURROGATES if rng.random() < 0.3 else _SPACES
            pieces.insert(rng.randint(0, len(pieces)), rng.choice(signs).replace("~", "gnirts"))
        return _joined(pieces)

    def _short(self) -> str:
        return self._rng.choice(("", " ", "\n", self.mark(), self.mark(), self.sentence(), "Yes."))

    def _again(self) -> str:
        """Return the same text, or the same with other white space."""
        if not self._texts:
            return self._plain()
        text = self._rng.choice(self._texts)
        return self._rng.choice((text, text.replace(". ", ".\n"), text.replace("\n\n", "\n")))


def _joined(pieces: Sequence[str]) -> str:
    text = pieces[0] if pieces else ""
    for piece in pieces[1:]:
        text += piece if text[-1:].isspace() or piece[:1].isspace() else f" {piece}"
    return text


def write_file(rng: random.Random, texts: Sequence[str], *, kinds: Sequence[int] = range(6)) -> str:
    """Return a file with equal or similar records in it.

    Args:
        rng: the only source of chance.
        texts: of its records.
        kinds: of files; the first two are XML, of which several are elements of one list if no mark
            is between them, and the last two are what a list of documents looks like.
    """
    records = [*texts, texts[0]] if rng.random() < 0.5 else list(texts)
    kind = rng.choice(kinds)
    if kind == 0:
        docs = "".join(f"  <doc><field>{text}</field></doc>\n" for text in records)
        return f"<add>\n{docs}</add>"
    if kind == 1:
        items = "".join(f"<item>{text}</item>\n" for text in records)
        return f'<?xml version="1.0"?>\n<rss><channel>\n{items}</channel></rss>'
    if kind == 6:
        return json.dumps([{"text": text, "tags": ["<doc>a</doc>", "[1]"]} for text in records])
    if kind == 3:
        return json.dumps({"results": [{"html": f"<p>{text}</p>"} for text in records]}, indent=2)
    if kind == 4:
        steps = "\n".join(f"    # {i}. {text}\n    run({i})" for i, text in enumerate(records, 1))
        return f"def main():\n{steps}\n"
    if kind == 5:
        return "\n".join(
            f"2024-05-0{i % 9} 10:00:0{i} INFO [{i}] {t}" for i, t in enumerate(records)
        )
    if kind == 7:
        return "\n".join(f"<document>{text}</document>" for text in records)
    assert kind == 2, "one of eight kinds"
    lines = "\n".join(f"-{text}\n+{text} New." for text in records)
    return f"--- a/notes.md\n+++ b/notes.md\n@@ -1,3 +1,3 @@\n{lines}"
