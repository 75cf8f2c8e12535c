"""Texts with lists that are not documents: examples, transcripts, code, steps, schemas, and so on.

Each shape is a list of items in a frame. The items of one application come back and shift as in its
kind: a window moves on, an item is edited, or other items are chosen each time. To move, leave out
or replace any of them would be wrong.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TEXT = (
    "server config queue worker retry limit cache user account order invoice parcel customer "
    "refund ticket screen button error warning request response field value table index branch "
    "commit release test review garden kitchen train flight hotel dinner morning evening holiday "
    "museum the a of and to in for with from when after before not was is has been very quite "
    "almost file"
)
_WORDS = _TEXT.split()
_PEOPLE = ("Ann", "Bob", "Cleo", "Dan", "Eve")

Write = Callable[[random.Random, Sequence[str]], str]


@dataclass(frozen=True)
class ListShape:
    """One kind of list.

    Attributes:
        name: for reports.
        write: writes items; the position is part of what it writes.
        head: what stands before the list.
        moves: how the items change between requests: `window`, `edit`, `choose` or `swap`.
        words: of an item, about.
        places: roles that such a text has.
    """

    name: str
    write: Write
    head: str
    moves: str = "choose"
    words: int = 40
    places: Sequence[str] = ("user", "system")


def sentence(rng: random.Random, words: int) -> str:
    """Return some sentences with so many words, about."""
    made, left = [], words
    while left > 0:
        size = min(left, rng.randint(7, 14))
        made.append(" ".join(rng.choices(_WORDS, k=size)).capitalize() + ".")
        left -= size
    return " ".join(made)


def _each(form: str, between: str = "\n\n", *, first: int = 1) -> Write:
    """Write items in a form with `§n`, `§w` (a short text that belongs to the item) and `§t`."""

    def write(_rng: random.Random, items: Sequence[str]) -> str:
        return between.join(_fill(form, number, item) for number, item in enumerate(items, first))

    return write


def _fill(form: str, number: int, item: str) -> str:
    own = random.Random(item)  # what belongs to an item is the same each time
    text = form.replace("§n", str(number)).replace("§p", own.choice(_PEOPLE))
    text = text.replace("§w", " ".join(own.choices(_WORDS, k=3)))
    text = text.replace("§d", str(own.randint(10, 59)))
    text = text.replace("§j", json.dumps(item)[1:-1])
    return text.replace("§t", item)


def _letters(form: str, between: str = "\n") -> Write:
    def write(_rng: random.Random, items: Sequence[str]) -> str:
        pairs = zip("ABCDEFGHIJ", items, strict=False)
        return between.join(
            form.replace("§l", letter).replace("§t", item) for letter, item in pairs
        )

    return write


def _around(before: str, write: Write, after: str) -> Write:
    return lambda rng, items: f"{before}{write(rng, items)}{after}"


def _todo(rng: random.Random, items: Sequence[str]) -> str:
    done = rng.randint(0, len(items))
    return "\n".join(f"- [{'x' if at < done else ' '}] {item}" for at, item in enumerate(items))


def _steps_done(rng: random.Random, items: Sequence[str]) -> str:
    at = rng.randrange(len(items))
    states = ("completed", "in_progress", "pending")
    listed = [
        {"id": str(i + 1), "content": item, "status": states[(i > at) + (i >= at)]}
        for i, item in enumerate(items)
    ]
    return json.dumps(listed, indent=2)


def _numbers(rng: random.Random, items: Sequence[str]) -> str:
    rows = [
        f"| {item.split('.')[0][:30]} | {rng.randint(1, 9)}.{rng.randint(0, 99):02} | "
        f"{rng.randint(100, 999)} |"
        for item in items
    ]
    return "\n".join(("| what | mean | count |", "|---|---|---|", *rows))


def _code(_rng: random.Random, items: Sequence[str]) -> str:
    lines = [
        f"    # {at}. {item}\n    step_{at}(context)\n    log.info('{item[:40]}')"
        for at, item in enumerate(items, 1)
    ]
    return "def run(context):\n" + "\n\n".join(lines)


def _functions(_rng: random.Random, items: Sequence[str]) -> str:
    return "\n\n\n".join(
        f'def {_fill("§w", at, item).replace(" ", "_")}(value):\n    """{item}"""\n    return value'
        for at, item in enumerate(items)
    )


def _patch(_rng: random.Random, items: Sequence[str]) -> str:
    return "\n".join(
        f"--- a/src/{_fill('§w', 1, item).replace(' ', '/')}.py\n"
        f"+++ b/src/{_fill('§w', 1, item).replace(' ', '/')}.py\n@@ -{at},4 +{at},4 @@\n"
        f" def run():\n-    # {item}\n+    # {item[::-1][:30]}\n     return 1"
        for at, item in enumerate(items, 10)
    )


def _schemas(_rng: random.Random, items: Sequence[str]) -> str:
    listed = [
        {
            "name": _fill("§w", 1, item).replace(" ", "_"),
            "description": item,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        }
        for item in items
    ]
    return json.dumps(listed, indent=2)


def _strings(_rng: random.Random, items: Sequence[str]) -> str:
    return json.dumps(list(items), indent=1)


_QA = "Q: §w?\nA: §t"
_MAIL = "From: §p <§p@example.org>\nDate: 3 May, 10:§d\nSubject: Re: §w\n\n§t"
_HELP = "## §w\nDescription: §t\nParameters:\n- path: (required) §w\nUsage:\n<§d>\n</§d>"
_POM = "<dependency>\n  <groupId>org.§p</groupId>\n  <!-- §t -->\n</dependency>"

SHAPES = (
    # examples
    ListShape("few-shot Q/A", _each(_QA), "Answer like this.\n\n"),
    ListShape("few-shot input/output", _each("Input: §t\nOutput: §w"), "Label the input.\n\n"),
    ListShape("few-shot User/Assistant", _each("User: §t\nAssistant: §w"), "A style to copy:\n\n"),
    ListShape("few-shot Example 1", _each("Example §n:\nText: §t\nLabel: §w"), "Classify.\n\n"),
    ListShape(
        "few-shot ### Example 1", _each("### Example §n\n§t\n**Answer**: §w"), "Classify.\n\n"
    ),
    ListShape(
        "few-shot tags",
        _around(
            "<examples>\n", _each("<example>\n§t\nLabel: §w\n</example>", "\n"), "\n</examples>"
        ),
        "Classify the text.\n\n",
    ),
    ListShape("few-shot JSON lines", _each('{"text": "§j", "label": "§w"}', "\n"), "Label.\n\n"),
    ListShape("few-shot, dashes", _each("§t => §w", "\n---\n"), "Shorten as here.\n\n"),
    ListShape("few-shot, fixed", _each(_QA), "Answer like this.\n\n", "same"),
    # order is the content
    ListShape("transcript", _each("§p: §t", "\n"), "Sum up the call.\n\n", "window", 25),
    ListShape("transcript, times", _each("[10:§d] §p: §t", "\n"), "Sum up.\n\n", "window", 25),
    ListShape("transcript, paragraphs", _each("**§p**\n\n§t"), "Sum up.\n\n", "window", 50),
    ListShape("chat tags", _each('<message from="§p">§t</message>', "\n"), "Reply.\n\n", "window"),
    ListShape(
        "log", _each("2024-05-03 10:11:§d INFO worker-§d §t", "\n"), "Why?\n\n", "window", 20
    ),
    ListShape(
        "log, blocks", _each("ERROR §w\n  at §w\n  §t"), "Why did it fail?\n\n", "window", 45
    ),
    ListShape("email thread", _each(_MAIL, "\n\n"), "Answer the last mail.\n\n", "window", 60),
    ListShape("email thread, dashes", _each(_MAIL, "\n\n----\n\n"), "Answer.\n\n", "window", 60),
    ListShape("quoted replies", _each("On 3 May §p wrote:\n> §t"), "Answer.\n\n", "window", 50),
    ListShape("story", _each("§t"), "Correct the spelling of my text.\n\n", "edit", 70),
    ListShape("essay, sections", _each("## §w\n\n§t"), "Make my essay shorter.\n\n", "edit", 80),
    ListShape("essay, swapped", _each("§t"), "Is my text better now?\n\n", "swap", 70),
    ListShape("chapters", _each("Chapter §n: §w\n§t"), "Go on with the story.\n\n", "window", 80),
    ListShape("diary", _each("§d May\n§t"), "What have I learnt?\n\n", "window", 50),
    # steps and rules
    ListShape("steps", _each("Step §n: §t", "\n"), "Follow these steps.\n\n", "edit", 30),
    ListShape("steps, numbers", _each("§n. §t", "\n"), "Do this.\n\n", "edit", 45),
    ListShape("rules, bullets", _each("- §t", "\n"), "Rules:\n\n", "choose", 30),
    ListShape("rules, labels", _each("Rule §n: §t"), "You are an agent.\n\n", "choose", 45),
    ListShape("recipe", _each("§n) §t", "\n"), "Is this right?\n\n", "edit", 25),
    ListShape("options, letters", _letters("§l) §t"), "Which is right?\n\n", "choose", 20),
    ListShape("options, numbers", _each("(§n) §t", "\n"), "Choose one.\n\n", "choose", 25),
    ListShape("contents", _each("§n. §w ........ §d", "\n"), "Which chapter?\n\n", "choose", 4),
    ListShape("todo list", _todo, "The plan:\n\n", "edit", 15),
    ListShape("todo list, JSON", _steps_done, "", "edit", 20, ("user", "tool")),
    # the answer follows the order
    ListShape("translate strings", _strings, "Translate each, in this order.\n\n", "choose", 30),
    ListShape("translate lines", _each("§n. §t", "\n"), "Translate, keep the order.\n\n", "choose"),
    ListShape("label texts", _each("Text §n: §t"), "Label each text; a list of labels.\n\n"),
    ListShape("rank answers", _each("Answer §n: §t"), "Which answer is best? A number.\n\n"),
    ListShape("subtitles", _each("§n\n00:00:§d --> 00:00:§d\n§t"), "Translate.\n\n", "window", 15),
    # tools and code
    ListShape("tool schemas", _schemas, "You have these tools:\n\n", "choose", 30),
    ListShape("tool descriptions", _each(_HELP), "# Tools\n\n", "choose", 40),
    ListShape("tool tags", _each("<tool>\n<name>§w</name>\n§t\n</tool>", "\n"), "Tools:\n"),
    ListShape("code, comments", _code, "What does this do?\n\n", "edit", 15, ("user", "tool")),
    ListShape("code, functions", _functions, "", "edit", 25, ("user", "tool")),
    ListShape("patch", _patch, "Review this.\n\n", "edit", 15, ("user", "tool")),
    ListShape(
        "SQL", _each("-- §t\nCREATE TABLE t§d (id INT);"), "Write a query.\n\n", "choose", 25
    ),
    ListShape("XML config", _each(_POM, "\n"), "<dependencies>\n", "edit", 25, ("user", "tool")),
    ListShape("table of numbers", _numbers, "Plot this.\n\n", "edit", 8, ("user", "tool")),
    ListShape("CSV", _each("§n,§p,§d,§w", "\n"), "id,name,age,what\n", "edit", 4, ("user", "tool")),
    ListShape("INI", _each("[§w]\n; §t\nport = §d"), "", "edit", 30, ("user", "tool")),
    ListShape("form", _each("Name: §p\nAge: §d\nRemark: §t"), "Fill the forms.\n\n", "choose", 25),
)


class Items:
    """The items of one application.

    Args:
        rng: the only source of chance.
        shape: of its lists.
    """

    def __init__(self, rng: random.Random, shape: ListShape) -> None:
        self._rng = rng
        self._shape = shape
        self._at = 0
        self._pool = [self._new() for _ in range(12)]
        self._shown = self._pool[:5]

    def draw(self) -> str:
        """Return the next list, with what stands before it."""
        getattr(self, f"_{self._shape.moves}")()
        return f"{self._shape.head}{self._shape.write(self._rng, self._shown)}"

    def _new(self) -> str:
        return sentence(self._rng, max(3, self._shape.words + self._rng.randint(-9, 25)))

    def _same(self) -> None:
        pass

    def _choose(self) -> None:
        self._shown = self._rng.sample(self._pool, self._rng.randint(3, 6))

    def _window(self) -> None:
        self._at += self._rng.randint(0, 2)
        while len(self._pool) < self._at + 6:
            self._pool.append(self._new())
        self._shown = self._pool[self._at : self._at + self._rng.randint(3, 6)]

    def _edit(self) -> None:
        at = self._rng.randrange(len(self._shown))
        change = self._rng.random()
        if change < 0.4:
            self._shown = [*self._shown[:at], self._new(), *self._shown[at:]]
        elif change < 0.7 and len(self._shown) > 3:
            self._shown = [*self._shown[:at], *self._shown[at + 1 :]]
        else:
            self._shown = [*self._shown[:at], self._new(), *self._shown[at + 1 :]]
        self._shown = self._shown[:9]

    def _swap(self) -> None:
        self._edit()
        self._shown = self._rng.sample(self._shown, len(self._shown))
