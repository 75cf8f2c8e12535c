"""Random requests that buy, rent or do neither: counts add up, exact requests stay exact."""

import random
from collections.abc import Iterator

import pytest

from ragboost.engine.loading import LoadedModel, load_model
from ragboost.engine.runtime.engine import Engine
from tests.engine.runtime.test_reuse import (
    SETTINGS,
    approx,
    assert_nothing_is_held,
    parts_of,
    wait_for_chunks,
)
from tests.engine.submitting import Request, running

ORDERS = [[1, 2, 3, 4], [4, 3, 2, 1], [1, 2, 4], [2, 1, 3], [1, 3, 2, 4, 5], [5, 1]]
AT_ONCE = 4


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(SETTINGS)


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[Engine]:
    with running(loaded, SETTINGS) as engine:
        yield engine
    assert_nothing_is_held(engine)


def answers(engine: Engine) -> list[list[int | None]]:
    """Return what each prompt is answered by an engine in which nothing is cached."""
    return [
        Request(engine, parts_of(order), salt=f"alone {number}").tokens()
        for number, order in enumerate(ORDERS)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_exact_requests_never_see_what_others_have_rented(engine: Engine, seed: int) -> None:
    draw, wanted = random.Random(seed), answers(engine)
    for _ in range(12):
        sent = []
        for _ in range(AT_ONCE):
            number, is_reusing = draw.randrange(len(ORDERS)), draw.random() < 0.6
            parts = parts_of(ORDERS[number])
            bought = draw.choice([0, 1, 2, len(parts.chunks), 4096])
            reuse = approx(draw.choice(["gradual", "epic"]), draw.choice([0.0, 0.25, 1.0]))
            if is_reusing:
                request = Request(engine, parts, reuse=reuse, exact_chunks=bought)
            else:
                request, bought = Request(engine, parts), 4096
            sent.append((request, number, bought, is_reusing))
        for request, number, bought, is_reusing in sent:
            outputs = request.finish()
            start = request.submitted.exact_until
            spans = parts_of(ORDERS[number]).spans
            if bought >= len(spans):
                assert start is None
                assert [output.token_id for output in outputs] == wanted[number]
            elif start is not None:
                assert start >= spans[bought][0]
            if is_reusing:
                origins = outputs[-1].origins
                assert origins is not None
                assert sum(origins) == request.submitted.num_prompt_tokens
        if draw.random() < 0.2:
            engine.reset_prefix_cache().result()
    assert answers(engine) == wanted


def test_what_one_request_buys_is_the_prefix_of_the_next_one(engine: Engine) -> None:
    Request(engine, parts_of([1, 2, 3, 4]), reuse=approx()).finish()
    wait_for_chunks(engine, 4)
    engine.reset_prefix_cache().result()

    buying = Request(engine, parts_of([4, 3, 2, 1]), reuse=approx(), exact_chunks=2).sources()
    renting = Request(engine, parts_of([4, 3, 1, 2]), reuse=approx()).sources()
    other = Request(engine, parts_of([4, 3, 1, 2]), reuse=approx(), salt="other").sources()

    assert buying == (0, 60, 20, 20 + 80 + 12)
    assert renting[0] == 96, "system prompt and both chunks, in whole blocks"
    assert other[0] == 0, "nothing is shared with another tenant"
