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


@pytest.mark.parametrize("haystack", [0, 5])
@pytest.mark.parametrize("task", TASKS)
def test_answers_are_right_and_drawn_prompts_repeat(task: str, haystack: int) -> None:
    prompts = make_prompts(task, 60, seed=3, haystack=haystack)
    assert [solve(prompt) for prompt in prompts] == [prompt.answer for prompt in prompts]
    assert prompts == make_prompts(task, 60, seed=3, haystack=haystack)
    assert prompts != make_prompts(task, 60, seed=4, haystack=haystack)
    assert len({len(prompt.tokens) for prompt in prompts}) == 1


@pytest.mark.parametrize("haystack", [0, 5])
def test_dependent_tokens_are_the_statements_about_it(haystack: int) -> None:
    for prompt in make_prompts("anaphora", 20, seed=0, haystack=haystack):
        it = range(first_id("it"), first_id("it") + 16)
        positions = [i for i, token in enumerate(prompt.tokens) if token in it]
        assert positions == list(prompt.dependent)
        assert min(positions) >= len(SYSTEM) + len(prompt.chunks[0])


def test_every_token_has_parts() -> None:
    parts = composition()
    assert len(parts) == VOCAB_SIZE
    assert len({p for one in parts for p in one}) < VOCAB_SIZE


def test_a_haystack_is_fillers_alone_at_other_places_in_each_prompt() -> None:
    fillers = range(first_id("filler"), first_id("filler") + 60)

    def is_hay(chunk: tuple[int, ...]) -> bool:
        return all(token in fillers for token in chunk[1:])

    prompts = make_prompts("local", 20, seed=0, haystack=5)
    assert {len(prompt.chunks) for prompt in prompts} == {13}
    assert {sum(map(is_hay, prompt.chunks)) for prompt in prompts} == {5}
    assert len({tuple(map(is_hay, prompt.chunks)) for prompt in prompts}) > 10
