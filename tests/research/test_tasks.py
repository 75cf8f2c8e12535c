"""The answers of the synthetic tasks are those of an independent solver."""

import pytest

from research.tasks import (
    SYSTEM,
    TASKS,
    VOCAB_SIZE,
    TaskPrompt,
    composition,
    first_id,
    make_prompts,
)


def solve(prompt: TaskPrompt) -> int:
    """Read the documents one statement at a time and answer: an independent solver."""

    def number(token: int, kind: str, size: int = 16) -> int | None:
        first = first_id(kind)
        return token - first if first <= token < first + size else None

    word: dict[int, int] = {}
    last: dict[int, int] = {}
    speaker: dict[int, int] = {}
    current = None
    for chunk in prompt.chunks:
        introduced = None
        for token in chunk:
            if (fact := number(token, "fact", 256)) is not None:
                word[fact // 16] = fact % 16
            elif (value := number(token, "it")) is not None:
                assert current is not None
                last[current], speaker[value] = value, current
            elif (entity := number(token, "intro")) is not None:
                introduced = entity
        current = current if introduced is None else introduced
    asked = prompt.question[-1]
    if (entity := number(asked, "QL")) is not None:
        return first_id("word") + word[entity]
    if (value := number(asked, "QX")) is not None:
        return first_id("entity") + speaker[value]
    if (value := number(asked, "QB")) is not None:
        return first_id("word") + word[speaker[value]]
    if (entity := number(asked, "QU")) is not None:
        return first_id("value") + last[entity]
    first, second = prompt.question
    pair = first - first_id("QC"), second - first_id("QD")
    return first_id("value") + max(last[entity] for entity in pair)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_right_and_drawn_prompts_repeat(task: str) -> None:
    prompts = make_prompts(task, 60, seed=3)
    assert [solve(prompt) for prompt in prompts] == [prompt.answer for prompt in prompts]
    assert prompts == make_prompts(task, 60, seed=3)
    assert prompts != make_prompts(task, 60, seed=4)
    assert len({len(prompt.tokens) for prompt in prompts}) == 1


def test_dependent_tokens_are_the_statements_about_it() -> None:
    for prompt in make_prompts("anaphora", 20, seed=0):
        it = range(first_id("it"), first_id("it") + 16)
        positions = [i for i, token in enumerate(prompt.tokens) if token in it]
        assert positions == list(prompt.dependent)
        assert min(positions) >= len(SYSTEM) + len(prompt.chunks[0])


def test_every_token_has_parts() -> None:
    parts = composition()
    assert len(parts) == VOCAB_SIZE
    assert len({p for one in parts for p in one}) < VOCAB_SIZE
