"""Questions made by rule, each with something of its own in documents of a corpus.

needles1, needles4: one code, or four in four documents. relevant: one code, that of the first
document, as a perfect retriever lists them. names: who has an office, in one of four
documents. last: the code of the last document, where each has one. coreference: a document says
`she` of somebody whom the document before it introduces. order: which of two documents is first in
the list. contradiction: two documents differ, and the one that is first in the list is right.
aggregation: three documents name a part of the answer each.

Drawn with a seed; the invented sentences stand between sentences of real documents.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.datasets.retrieval import read_rows
from benchmarks.language.cases import MAX_TOKENS, MIN_TOKENS, CountTokens, LanguageCase, cut
from ragboost.types import Document

_FIRST = (
    *("Tilda", "Ines", "Oksana", "Maren", "Ruth", "Yara"),
    *("Selma", "Greta", "Nadia", "Petra", "Lotte", "Amara"),
)
_LAST = (
    *("Brask", "Okafor", "Lindqvist", "Varga", "Moreau", "Castell"),
    *("Drago", "Hollis", "Ferrant", "Quist", "Bramley", "Noor"),
)
_TOWNS = (
    *("Lund", "Bergen", "Turku", "Vaasa", "Odense"),
    *("Tartu", "Narvik", "Visby", "Gdynia", "Kiruna"),
)
_PETS = (
    *("Odin", "Biscuit", "Pepper", "Hazel", "Clover"),
    *("Marbles", "Waffle", "Juniper", "Ziggy", "Mocha"),
)
_ANIMALS = (
    *("lynx", "otter", "heron", "badger", "marten"),
    *("beaver", "falcon", "moose", "weasel", "crane"),
)
_ROOM = 25  # tokens that an invented sentence may add


class Draft(NamedTuple):
    """A question, its answers, and the sentences to be put into documents."""

    question: str
    answers: tuple[str, ...]
    at_start: Mapping[int, str]  # by the number of the document
    inside: Mapping[int, str]
    at_end: Mapping[int, str]


def make_cases(
    task: str,
    folder: Path,
    *,
    count: int,
    num_documents: int,
    count_tokens: CountTokens,
    seed: int,
    longest: int = MAX_TOKENS,
) -> list[LanguageCase]:
    """Return cases of a task, with fillers from a data set's corpus."""
    fillers = []
    for row in read_rows(folder, "corpus.jsonl*"):
        if count_tokens(row["text"]) >= MIN_TOKENS and row.get("title"):
            text = cut(row["text"], count_tokens, longest=longest - _ROOM)
            fillers.append((row["title"], text))
        if len(fillers) == 2000:
            break
    cases = []
    for number in range(count):
        rng = random.Random(f"{task}-{seed}-{number}")
        by_title = dict(rng.sample(fillers, min(len(fillers), 3 * num_documents)))
        chosen = list(by_title.items())[:num_documents]
        draft = TASKS[task](rng, [title for title, _ in chosen])
        documents = tuple(
            Document(_written(text, at, draft, rng), id=str(at + 1), title=title)
            for at, (title, text) in enumerate(chosen)
        )
        cases.append(LanguageCase(f"{task}-{number}", draft.question, draft.answers, documents))
    return cases


def _written(text: str, at: int, draft: Draft, rng: random.Random) -> str:
    if sentence := draft.inside.get(at):
        sentences = re.split(r"(?<=[.!?]) +", text)
        sentences.insert(rng.randint(1, len(sentences)), sentence)
        text = " ".join(sentences)
    parts = (draft.at_start.get(at), text, draft.at_end.get(at))
    return " ".join(part for part in parts if part)


def _people(rng: random.Random, count: int) -> list[str]:
    pairs = zip(rng.sample(_FIRST, count), rng.sample(_LAST, count), strict=True)
    return [f"{first} {last}" for first, last in pairs]


def _needles(
    rng: random.Random, titles: Sequence[str], count: int, *, is_first: bool = False
) -> Draft:
    people = _people(rng, 4)
    codes = rng.sample(range(1000, 10_000), 4)
    places = rng.sample(range(len(titles)), 4)
    if is_first:
        places = [0, *(place for place in places if place)][:4]
    inside = {
        place: f"The door code of {name} is {code}."
        for place, name, code in zip(places, people, codes, strict=True)
    }
    if count == 1:
        return Draft(f"What is the door code of {people[0]}?", (str(codes[0]),), {}, inside, {})
    names = f"{', '.join(people[:3])} and {people[3]}"
    answer = " ".join(map(str, codes))
    return Draft(f"What are the door codes of {names}?", (answer,), {}, inside, {})


def _names(rng: random.Random, titles: Sequence[str]) -> Draft:
    people, towns = _people(rng, 4), rng.sample(_TOWNS, 4)
    places = rng.sample(range(len(titles)), 4)
    inside = {
        place: f"The harbour master of {town} is {name}."
        for place, town, name in zip(places, towns, people, strict=True)
    }
    return Draft(f"Who is the harbour master of {towns[0]}?", (people[0],), {}, inside, {})


def _last(rng: random.Random, titles: Sequence[str]) -> Draft:
    codes = rng.sample(range(1000, 10_000), len(titles))
    inside = {at: f"The code of this document is {code}." for at, code in enumerate(codes)}
    question = "What is the code of the last document?"
    return Draft(question, (str(codes[-1]),), {}, inside, {})


def _coreference(rng: random.Random, titles: Sequence[str]) -> Draft:
    people = _people(rng, 3)
    pets = rng.sample(_PETS, 3)
    towns = rng.sample(_TOWNS, 3)
    first = rng.sample(range(len(titles) // 2), 3)
    at_end = {
        2 * at: f"The harbour master of {town} is {name}."
        for at, town, name in zip(first, towns, people, strict=True)
    }
    at_start = {
        2 * at + 1: f"She has a dog called {pet}." for at, pet in zip(first, pets, strict=True)
    }
    question = f"What is the dog of {people[0]} called?"
    return Draft(question, (pets[0],), at_start, {}, at_end)


def _order(rng: random.Random, titles: Sequence[str]) -> Draft:
    first, second = sorted(rng.sample(range(len(titles)), 2))
    names = [titles[first], titles[second]]
    rng.shuffle(names)
    question = f'Which comes first in the list of documents, "{names[0]}" or "{names[1]}"?'
    return Draft(question, (titles[first],), {}, {}, {})


def _contradiction(rng: random.Random, titles: Sequence[str]) -> Draft:
    town = rng.choice(_TOWNS)
    right, wrong = rng.sample(range(2, 12), 2)
    first, second = sorted(rng.sample(range(len(titles)), 2))
    inside = {
        first: f"The museum of {town} has {right} halls.",
        second: f"The museum of {town} has {wrong} halls.",
    }
    question = (
        "The first document in the list is the most reliable, the last one the least. "
        f"How many halls does the museum of {town} have?"
    )
    return Draft(question, (str(right),), {}, inside, {})


def _aggregation(rng: random.Random, titles: Sequence[str]) -> Draft:
    ranger, other = _people(rng, 2)
    animals = rng.sample(_ANIMALS, 5)
    places = rng.sample(range(len(titles)), 5)
    names = [ranger] * 3 + [other] * 2
    inside = {
        place: f"The ranger {name} saw a {animal}."
        for place, name, animal in zip(places, names, animals, strict=True)
    }
    question = f"Which three animals did the ranger {ranger} see?"
    return Draft(question, (" ".join(animals[:3]),), {}, inside, {})


TASKS: Mapping[str, Callable[[random.Random, Sequence[str]], Draft]] = {
    "needles1": lambda rng, titles: _needles(rng, titles, 1),
    "relevant": lambda rng, titles: _needles(rng, titles, 1, is_first=True),
    "needles4": lambda rng, titles: _needles(rng, titles, 4),
    "names": _names,
    "last": _last,
    "coreference": _coreference,
    "order": _order,
    "contradiction": _contradiction,
    "aggregation": _aggregation,
}
