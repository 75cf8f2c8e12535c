"""Synthetic question tasks over documents that depend on each other, for measuring chunk reuse.

Every document may say "it has value v" about the entity that an *earlier* document introduced
last, so that the document alone does not tell which entity it is about. Knows token ids and
answers.

A document holds one statement of each kind at random places, with IT before INTRO:

    FACT(e, w)   entity e has word w: complete in itself
    IT(v)        the entity introduced last, in an earlier document, has value v
    INTRO(e)     from here on, "it" is e

Five tasks ask about them:

    local       QL(e) -> w                     control: no document needs another one
    anaphora    QX(v) -> e of IT(v)            the antecedent is in another document
    two_hop     QB(v) -> w of FACT(e, w)       where e is the antecedent of IT(v)
    update      QU(e) -> v                     the last value said about e
    compare     QC(a) QD(b) -> v               the higher of the last values of a and b
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragboost.chunk_cache.eval.cases import Case

Ids = npt.NDArray[np.int64]

TASKS = ("local", "anaphora", "two_hop", "update", "compare")
NUM_ENTITIES = 16
NUM_VALUES = 16
NUM_WORDS = 16
NUM_FILLERS = 60
SYSTEM = (0, 1, 2, 3)
"""The system prompt, which begins with the BOS token."""
DOCUMENT = 4
"""The first token of every document."""

_KINDS = {
    "filler": NUM_FILLERS,
    "entity": NUM_ENTITIES,
    "value": NUM_VALUES,
    "word": NUM_WORDS,
    "intro": NUM_ENTITIES,
    "it": NUM_VALUES,
    "QL": NUM_ENTITIES,
    "QX": NUM_VALUES,
    "QB": NUM_VALUES,
    "QU": NUM_ENTITIES,
    "QC": NUM_ENTITIES,
    "QD": NUM_ENTITIES,
    "fact": NUM_ENTITIES * NUM_WORDS,
}


def first_id(kind: str) -> int:
    """Return the id of the first token of a kind, such as `intro` or `QX`."""
    offset = DOCUMENT + 1
    for name, size in _KINDS.items():
        if name == kind:
            return offset
        offset += size
    raise KeyError(kind)


VOCAB_SIZE = DOCUMENT + 1 + sum(_KINDS.values())


@dataclass(frozen=True, slots=True)
class TaskCase(Case):
    dependent: tuple[int, ...] = ()  # positions that an oracle would recompute


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """One question over documents."""

    system: tuple[int, ...]  # token ids
    chunks: tuple[tuple[int, ...], ...]  # token ids of the documents, in order
    question: tuple[int, ...]
    answer: int  # id of the correct next token
    task: str  # one of `TASKS`
    # positions in the whole prompt of the tokens whose meaning depends on another document (the IT
    # tokens), which an oracle would recompute
    dependent: tuple[int, ...]

    @property
    def tokens(self) -> list[int]:
        """All token ids in order."""
        return [*self.system, *(t for chunk in self.chunks for t in chunk), *self.question]

    def case(self) -> TaskCase:
        """Return the prompt as a case for `runner.evaluate`."""
        return TaskCase(
            self.system,
            self.chunks,
            self.question,
            task=self.task,
            answer=self.answer,
            dependent=self.dependent,
        )


@dataclass(frozen=True, slots=True)
class World:
    """A batch of n document sets and their meaning."""

    documents: Ids  # token ids, (n, documents + haystack, length)
    place: Ids  # index of each document among all of its prompt, (n, documents)
    it_slot: Ids  # index of the IT token in each document, 0 for none, (n, documents)
    value: Ids  # value of the document's IT token, -1 for none, (n, documents)
    antecedent: Ids  # entity of the IT token, -1 for none, (n, documents)
    last_value: Ids  # last value of each entity, -1 for none, (n, entities)
    word: Ids  # word of each entity's fact, -1 for none, (n, entities)


@dataclass(frozen=True, slots=True)
class Questions:
    """One question per row of a World."""

    tokens: Ids  # (n, 1), or (n, 2) for `compare`
    answer: Ids  # answer ids, (n,); -1 if the row has no such question
    argument: Ids  # entity or value named by each question token, (n, tokens)
    hop: Ids  # intermediate result of a solver for each question token, (n, tokens)
    # True if the question needs more than the nearest statement, such as an update that overwrote
    # an earlier value, (n,)
    hard: npt.NDArray[np.bool_]


def make_world(
    rng: np.random.Generator, num_prompts: int, *, documents: int, length: int, haystack: int = 0
) -> World:
    """Draw document sets.

    Args:
        documents: documents per prompt, 2 to `NUM_VALUES`.
        length: tokens per document, at least 4.
        haystack: documents of fillers alone, at random places among the others.
    """
    n, d = num_prompts, documents
    rows = np.arange(n)[:, None]
    entities = _permutations(rng, n, NUM_ENTITIES)
    cast = max(2, d // 2 + 1)
    intro = np.take_along_axis(entities, rng.integers(0, cast, (n, d)), 1)
    intro[(rng.random((n, d)) > 0.8) & (np.arange(d) > 0)] = -1
    antecedent = _fill_forward(intro)
    value = _permutations(rng, n, NUM_VALUES)[:, :d]
    value[:, 0] = -1
    last_value = np.full((n, NUM_ENTITIES), -1)
    for i in range(1, d):
        last_value[rows[:, 0], antecedent[:, i]] = value[:, i]
    shuffled = np.take_along_axis(entities[:, :d], _permutations(rng, n, d), 1)
    drawn = _permutations(rng, n, NUM_WORDS)[:, :d]
    word = np.full((n, NUM_ENTITIES), -1)
    word[rows, shuffled] = drawn

    slots = 1 + rng.random((n, d, length - 1)).argsort(-1)[:, :, :3]
    it_slot = slots[:, :, :2].min(-1)
    places = (it_slot, slots[:, :, :2].max(-1), slots[:, :, 2])
    tokens = first_id("filler") + rng.integers(0, NUM_FILLERS, (n, d, length))
    tokens[:, :, 0] = DOCUMENT
    contents = (
        np.where(value >= 0, first_id("it") + value, -1),
        np.where(intro >= 0, first_id("intro") + intro, -1),
        first_id("fact") + shuffled * NUM_WORDS + drawn,
    )
    for place, content in zip(places, contents, strict=True):
        old = np.take_along_axis(tokens, place[:, :, None], 2)
        new = np.where(content[:, :, None] >= 0, content[:, :, None], old)
        np.put_along_axis(tokens, place[:, :, None], new, 2)
    everything, place = _spread(rng, tokens, haystack)
    it_slot = np.where(value >= 0, it_slot, 0)
    return World(everything, place, it_slot, value, antecedent, last_value, word)


def _spread(rng: np.random.Generator, documents: Ids, haystack: int) -> tuple[Ids, Ids]:
    """Return the documents among as many of fillers, in their order, and their places."""
    n, d, length = documents.shape
    if haystack == 0:
        return documents, np.tile(np.arange(d), (n, 1))
    everything = first_id("filler") + rng.integers(0, NUM_FILLERS, (n, d + haystack, length))
    everything[:, :, 0] = DOCUMENT
    place = np.sort(_permutations(rng, n, d + haystack)[:, :d], 1)
    np.put_along_axis(everything, place[:, :, None], documents, 1)
    return everything, place


def ask(rng: np.random.Generator, world: World, *, task: str) -> Questions:
    """Draw one question of a task for each row."""
    n, d = world.value.shape
    rows = np.arange(n)
    about = rng.integers(1, d, n)
    value, entity = world.value[rows, about], world.antecedent[rows, about]
    always = np.ones(n, dtype=bool)
    if task == "local":
        entity = (rng.random(world.word.shape) * (world.word >= 0)).argmax(1)
        answer = first_id("word") + world.word[rows, entity]
        tokens = first_id("QL") + entity
        return _questions(tokens, answer, first_id("entity") + entity, answer, always)
    if task == "anaphora":
        answer = first_id("entity") + entity
        tokens = first_id("QX") + value
        return _questions(tokens, answer, first_id("value") + value, answer, always)
    if task == "two_hop":
        word = world.word[rows, entity]
        answer = np.where(word >= 0, first_id("word") + word, -1)
        tokens, hop = first_id("QB") + value, first_id("entity") + entity
        return _questions(tokens, answer, first_id("value") + value, hop, always)
    last = world.last_value[rows, entity]
    if task == "update":
        answer = first_id("value") + last
        tokens = first_id("QU") + entity
        return _questions(tokens, answer, first_id("entity") + entity, answer, last != value)
    if task == "compare":
        other = (world.antecedent != entity[:, None]) & (np.arange(d) > 0)
        second = world.antecedent[rows, (rng.random((n, d)) * other).argmax(1)]
        both = np.stack([last, world.last_value[rows, second]], 1)
        answer = np.where(other.any(1), first_id("value") + both.max(1), -1)
        pair = np.stack([entity, second], 1)
        tokens = pair + np.array([first_id("QC"), first_id("QD")])
        named = first_id("entity") + pair
        return Questions(tokens, answer, named, first_id("value") + both, always)
    raise KeyError(task)


def make_prompts(
    task: str,
    num_prompts: int,
    *,
    seed: int,
    documents: int = 8,
    length: int = 12,
    haystack: int = 0,
) -> list[TaskPrompt]:
    """Draw prompts of one task; the same arguments give the same prompts.

    `update` asks only about values that were overwritten.
    """
    rng = np.random.default_rng([seed, TASKS.index(task)])
    prompts: list[TaskPrompt] = []
    while len(prompts) < num_prompts:
        world = make_world(
            rng, 4 * num_prompts, documents=documents, length=length, haystack=haystack
        )
        asked = ask(rng, world, task=task)
        usable = asked.answer >= 0
        if task == "update":
            usable &= asked.hard
        prompts += [_prompt(world, asked, task, row) for row in np.flatnonzero(usable).tolist()]
    return prompts[:num_prompts]


def _prompt(world: World, asked: Questions, task: str, row: int) -> TaskPrompt:
    chunks = tuple(tuple(ids) for ids in world.documents[row].tolist())
    length = len(chunks[0])
    dependent = tuple(
        len(SYSTEM) + place * length + slot
        for place, slot in zip(world.place[row].tolist(), world.it_slot[row].tolist(), strict=True)
        if slot > 0
    )
    question = tuple(asked.tokens[row].tolist())
    return TaskPrompt(SYSTEM, chunks, question, int(asked.answer[row]), task, dependent)


def _questions(
    tokens: Ids, answer: Ids, argument: Ids, hop: Ids, hard: npt.NDArray[np.bool_]
) -> Questions:
    """Return questions of one token each from arrays of (n,)."""
    return Questions(tokens[:, None], answer, argument[:, None], hop[:, None], hard)


def _permutations(rng: np.random.Generator, rows: int, size: int) -> Ids:
    return rng.random((rows, size)).argsort(1)


def _fill_forward(intro: Ids) -> Ids:
    """Return for each document the entity introduced last *before* it; -1 for the first one."""
    result = np.full_like(intro, -1)
    for i in range(1, intro.shape[1]):
        result[:, i] = np.where(intro[:, i - 1] >= 0, intro[:, i - 1], result[:, i - 1])
    return result


def composition() -> Sequence[tuple[int, ...]]:
    """Return for each token id the ids of its components, such as a fact's entity and word, with
    `-1 - number` for its kind. Lets a model start from embeddings that share components."""
    parts: list[tuple[int, ...]] = [(token,) for token in range(DOCUMENT + 1)]
    of = {"intro": "entity", "it": "value", "QL": "entity", "QX": "value", "QB": "value"}
    of |= {"QU": "entity", "QC": "entity", "QD": "entity"}
    for number, (kind, size) in enumerate(_KINDS.items()):
        for i in range(size):
            if kind == "fact":
                entity, word = divmod(i, NUM_WORDS)
                parts.append((-1 - number, first_id("entity") + entity, first_id("word") + word))
            elif kind in of:
                parts.append((-1 - number, first_id(of[kind]) + i))
            else:
                parts.append((first_id(kind) + i,))
    return parts
