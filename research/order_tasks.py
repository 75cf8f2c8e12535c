"""Synthetic conversations in which the most relevant document wins, for `ragboost eval-order`.

A document states the colour of an animal, and documents contradict each other: the right answer is
in the most relevant document of the turn that mentions the animal. Prompts are rendered by the
product's own `Context` and hints. Knows no model.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ragboost.config import HintSettings
from ragboost.context import Context
from ragboost.hints import label_documents, location_hints, order_hint
from ragboost.types import Document, Hint

_ANIMALS = "ant bat bee cat cow crab deer dog duck fox goat hare hen ibis lynx mole"
_COLOURS = "amber black blue brown coral cyan gold gray green lime olive pink plum red tan teal"
ANIMALS = tuple(_ANIMALS.split())
COLOURS = tuple(_COLOURS.split())
NUM_LABELS = 40
WORDS = HintSettings(  # the paper's, whose phrases are single tokens of the trained models
    order_template="Please read the context in the following priority order: {order} "
    "and answer the question."
)

Placing = Literal["sent", "resent", "after_documents", "in_place"]


class OrderWorld(NamedTuple):
    """Documents that contradict each other; `facts[i]` is animal and colour of `documents[i]`."""

    documents: tuple[Document, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class OrderTurn:
    """One question with its documents."""

    question: str  # asks for an animal's colour
    retrieved: tuple[int, ...]  # positions in the world's documents, most relevant first
    answer: str  # the colour in the first of them that mentions the animal


class TrainingTurn(NamedTuple):
    """A rendered turn: the user's message, and the answer."""

    prompt: str
    answer: str


def draw_world(
    rng: np.random.Generator, *, documents: int, animals: int, labels: Sequence[int]
) -> OrderWorld:
    """Draw documents about a few animals."""
    about = rng.choice(len(ANIMALS), animals, replace=False)
    ids = rng.choice(labels, documents, replace=False)
    facts = tuple(
        (ANIMALS[about[i % animals]], COLOURS[int(rng.integers(len(COLOURS)))])
        for i in range(documents)
    )
    made = (
        Document(f"{animal}:{colour}", id=str(label))
        for (animal, colour), label in zip(facts, ids, strict=True)
    )
    return OrderWorld(tuple(made), facts)


def draw_turn(
    rng: np.random.Generator, world: OrderWorld, *, among: Sequence[int], k: int
) -> OrderTurn:
    """Draw a question, and a retrieval of `k` of the documents `among` in random order."""
    retrieved = tuple(int(i) for i in rng.permutation(among)[:k])
    asked = world.facts[retrieved[int(rng.integers(k))]][0]
    return OrderTurn(f"{asked}?", retrieved, answer_of(world, retrieved, asked))


def draw_questions(
    rng: np.random.Generator, *, questions: int, conversations: int, turns: int = 3
) -> Iterator[dict[str, object]]:
    """Draw the questions of an evaluation, in the format of `ragboost eval-order`.

    One world of forty documents in four topics: the retrievals of a topic overlap, so that a
    Booster reorders them. Single questions come first, then the turns of conversations.

    Args:
        conversations: number of conversations; a turn has five documents of its eight.
    """
    topics = [
        draw_world(rng, documents=10, animals=4, labels=range(first, first + 10))
        for first in range(0, NUM_LABELS, 10)
    ]
    for number in range(questions):
        world = topics[int(rng.integers(len(topics)))]
        yield _row(f"q{number}", world, draw_turn(rng, world, among=range(10), k=6))
    for number in range(conversations):
        world = topics[int(rng.integers(len(topics)))]
        among = [int(i) for i in rng.permutation(10)[:8]]
        for at in range(turns):
            turn = draw_turn(rng, world, among=among, k=5)
            yield _row(f"c{number}.{at}", world, turn) | {"conversation_id": f"c{number}"}


def _row(name: str, world: OrderWorld, turn: OrderTurn) -> dict[str, object]:
    documents = [world.documents[i] for i in turn.retrieved]
    return {
        "id": name,
        "question": turn.question,
        "documents": [{"id": one.id, "text": one.text} for one in documents],
        "answers": [turn.answer],
    }


def answer_of(world: OrderWorld, retrieved: Sequence[int], animal: str) -> str:
    """Return the colour in the first of these documents that mentions the animal."""
    return next(world.facts[i][1] for i in retrieved if world.facts[i][0] == animal)


def draw_conversation(
    rng: np.random.Generator, *, turns: int = 3, has_hints: bool
) -> Iterator[TrainingTurn]:
    """Draw the turns of a training conversation.

    Args:
        has_hints: half of the first turns are reordered with an order hint, and most documents of
            earlier turns are replaced by location hints; otherwise everything is in relevance
            order and sent again.
    """
    size, k = int(rng.integers(6, 12)), int(rng.integers(3, 7))
    world = draw_world(
        rng, documents=size, animals=int(rng.integers(2, 5)), labels=range(NUM_LABELS)
    )
    seen: set[int] = set()
    for number in range(turns):
        turn = draw_turn(rng, world, among=range(size), k=k)
        placing: Placing = "sent"
        if number and has_hints:
            placing = ("resent", "after_documents", "in_place")[int(rng.integers(3))]
        is_reordered = not number and has_hints and rng.random() < 0.6
        order = rng.permutation(k) if is_reordered else np.arange(k)
        yield TrainingTurn(
            rendered_turn(
                world,
                turn,
                order=order.tolist(),
                seen=seen,
                placing=placing,
                is_after=bool(rng.integers(2)),
            ),
            turn.answer,
        )
        seen.update(turn.retrieved)


def rendered_turn(
    world: OrderWorld,
    turn: OrderTurn,
    *,
    order: Sequence[int],
    seen: Collection[int] = (),
    placing: Placing = "sent",
    is_after: bool,
) -> str:
    """Render a turn as the product does.

    Args:
        order: of the documents in the prompt, as positions in the relevance order.
    """
    documents = [world.documents[i] for i in turn.retrieved]
    labels = label_documents(documents, template=WORDS.label_template, known={})
    is_old = [placing not in ("sent", "resent") and i in seen for i in turn.retrieved]
    hints: tuple[Hint, ...] = location_hints(
        [label for label, old in zip(labels, is_old, strict=True) if old],
        template=WORDS.location_template,
    )
    sent = [int(place) for place in order if not is_old[place]]
    if sent != sorted(sent):
        places = {place: at for at, place in enumerate(sent)}
        shown = [labels[place] for place in sent]
        by_relevance = [places[place] for place in sorted(sent)]
        hint = order_hint(shown, by_relevance, template=WORDS.order_template)
        hints += (hint,) if hint is not None else ()
    context = Context(
        query=turn.question,
        documents=tuple(documents[place] for place in sent),
        retrieved=tuple(documents),
        positions=tuple(sent.index(i) if i in sent else -1 for i in range(len(documents))),
        labels=tuple(labels[place] for place in sent),
        hints=hints,
        hint_position="after_question" if is_after else "before_question",
        location_position="in_place" if placing == "in_place" else "with_hints",
    )
    return context.render()
