"""Questions are answerable, contradictory, and rendered as the product renders them."""

import numpy as np

from ragboost.booster import Booster
from ragboost.config import Settings
from research.order_tasks import (
    ANIMALS,
    COLOURS,
    WORDS,
    OrderTurn,
    answer_of,
    draw_conversation,
    draw_questions,
    draw_world,
    rendered_turn,
)


def test_the_answer_is_in_the_most_relevant_document_that_mentions_the_animal() -> None:
    rows = list(draw_questions(np.random.default_rng(1), questions=200, conversations=20))

    assert len(rows) == 200 + 60
    contradicted = 0
    for row in rows:
        facts = [document["text"].split(":") for document in row["documents"]]
        said = [colour for animal, colour in facts if f"{animal}?" == row["question"]]
        assert row["answers"] == [said[0]]
        contradicted += len(set(said)) > 1
    assert contradicted > len(rows) / 3


def test_the_same_seed_gives_the_same_questions_and_topics_share_documents() -> None:
    one, other = (
        list(draw_questions(np.random.default_rng(7), questions=50, conversations=5))
        for _ in range(2)
    )

    assert one == other
    assert len({d["id"] for row in one for d in row["documents"]}) == 40


def test_a_training_prompt_is_what_the_product_sends() -> None:
    rng = np.random.default_rng(3)
    world = draw_world(rng, documents=6, animals=3, labels=range(40))
    asked = world.facts[2][0]
    first = OrderTurn(f"{asked}?", (2, 1, 0), answer_of(world, (2, 1, 0), asked))
    later = OrderTurn(f"{asked}?", (3, 2, 4, 0), answer_of(world, (3, 2, 4, 0), asked))
    for placing in ("after_documents", "in_place"):
        place = "in_place" if placing == "in_place" else "with_hints"
        hints = {"location_position": place, "order_template": WORDS.order_template}
        booster = Booster(Settings.model_validate({"hints": hints}))
        booster.boost("", [world.documents[i] for i in (0, 1, 2)])
        wanted = [
            booster.boost(
                turn.question, [world.documents[i] for i in turn.retrieved], session="s"
            ).render()
            for turn in (first, later)
        ]
        assert rendered_turn(world, first, order=(2, 1, 0), is_after=False) == wanted[0]
        assert (
            rendered_turn(
                world,
                later,
                order=(0, 1, 2, 3),
                seen={0, 1, 2},
                placing=placing,
                is_after=False,
            )
            == wanted[1]
        )


def test_conversations_without_hints_mention_none() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        for turn in draw_conversation(rng, has_hints=False):
            assert "Please" not in turn.prompt
            assert turn.answer in COLOURS
    turns = [turn for _ in range(50) for turn in draw_conversation(rng, has_hints=True)]
    assert sum("priority order" in turn.prompt for turn in turns) > 10
    assert sum("Please refer to" in turn.prompt for turn in turns) > 30
    assert all(turn.prompt.count("?") == 1 for turn in turns)
    assert len(ANIMALS) == len(COLOURS) == 16
