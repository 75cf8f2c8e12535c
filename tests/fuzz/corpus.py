"""Documents that name their owner: every text carries a marker such as `@kim.17@`.

Knows no request bodies.
"""

import random
import re
from dataclasses import dataclass

MARKER = re.compile(r"@([a-z0-9]+)\.(\d+)@")
_TEXT = (
    "lease tenant rent ledger harbour signed clause winter paid copper archive letter river bridge "
    "garden notice deposit witness market stone engine paper under before seven second north held"
)
_WORDS = _TEXT.split()
_COMMON = "The register of the harbour office, second volume, as copied by the clerk in winter: "


@dataclass(frozen=True)
class Doc:
    """One document of an owner; two may have the same id, and two the same text."""

    owner: str
    number: int
    id: str | int | None
    title: str | None
    text: str

    @property
    def marker(self) -> str:
        """The marker in its text."""
        return f"{self.owner}.{self.number}"


class Corpus:
    """Make the documents of all owners of an episode.

    Args:
        rng: the episode's.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sentences = [self._sentence() for _ in range(50)]
        self._pools: dict[str, list[Doc]] = {}
        self._next: dict[str, int] = {}

    def retrieve(self, owner: str) -> list[Doc]:
        """Return documents for one turn: some from earlier turns, now and then a duplicate."""
        rng, pool = self._rng, self._pools.setdefault(owner, [])
        found: list[Doc] = []
        for _ in range(rng.choice((2, 2, 3, 3, 4, 6))):
            if pool and rng.random() < 0.5:
                document = rng.choice(pool)
                if document not in found:
                    found.append(document)
            else:
                found.append(self._new(owner))
        roll = rng.random()
        if roll < 0.06:
            found.insert(rng.randrange(len(found) + 1), rng.choice(found))
        elif roll < 0.11:  # the same id with another text
            found.append(self._new(owner, id_of=rng.choice(found)))
        elif roll < 0.14:  # the same text under another id
            old = rng.choice(found)
            found.append(Doc(owner, old.number, f"copy-{old.number}", old.title, old.text))
        return found if len(found) > 1 else [*found, self._new(owner)]

    def _new(self, owner: str, *, id_of: Doc | None = None) -> Doc:
        rng = self._rng
        number = self._next[owner] = self._next.get(owner, 0) + 1
        name: str | int | None = rng.choice(
            (number % 7, f"doc-{number % 9}", f"a b {number}", None)
        )
        title = rng.choice((None, None, f"Title {number % 5}"))
        document = Doc(
            owner, number, id_of.id if id_of else name, title, self._text(f"@{owner}.{number}@")
        )
        self._pools[owner].append(document)
        return document

    def _text(self, marker: str) -> str:
        rng = self._rng
        sentences = rng.choices(self._sentences, k=rng.choice((1, 2, 3, 3, 5, 12)))
        start = f"{_COMMON}{marker} says" if rng.random() < 0.15 else f"Entry {marker} says"
        if rng.random() < 0.2:
            sentences.append(
                rng.choice(('He said "no" \\ and left.', "Grüße, 漢字 & <b>bold</b>."))
            )
        return f"{start}: {' '.join(sentences)} So ends {marker[1:-1].replace('.', ' no ')}."

    def _sentence(self) -> str:
        words = self._rng.choices(_WORDS, k=self._rng.randint(6, 14))
        return f"{' '.join(words).capitalize()}."
