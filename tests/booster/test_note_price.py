"""The tokens of a note about an order count against what the order saves."""

from collections.abc import Callable, Sequence

import pytest

import ragboost
from ragboost.ordering import Order
from ragboost.types import Document
from tests.requests.rewriting_proxy import RewritingProxy

Note = Callable[[Sequence[Document]], str]


def booster(**ordering: int) -> ragboost.Booster:
    """A word is a token."""
    settings = ragboost.Settings.model_validate({"ordering": ordering})
    return ragboost.Booster(settings, count_tokens=lambda text: len(text.split()))


def docs(*ids: int) -> list[Document]:
    return [Document(f"word{i} " * 10, id=i) for i in ids]


def words(count: int) -> Note:
    return lambda documents: "word " * count


@pytest.mark.parametrize(("num_words", "ids"), [(19, [2, 1, 9]), (20, [1, 2, 9]), (0, [2, 1, 9])])
def test_an_order_is_used_if_it_saves_more_than_its_note(num_words: int, ids: list[int]) -> None:
    boosted = booster()
    boosted.boost("first", docs(2, 1, 3))

    context = boosted.boost("second", docs(1, 2, 9), note=words(num_words))

    assert [document.id for document in context.documents] == ids
    assert context.predicted_cached_tokens == (20 if ids == [2, 1, 9] else 0)


def test_only_what_the_order_saves_beyond_the_callers_counts() -> None:
    boosted = booster()
    boosted.boost("first", docs(1, 2, 3))

    context = boosted.boost("second", docs(1, 9, 2), note=words(10))

    assert [document.id for document in context.documents] == [1, 9, 2]
    assert context.predicted_cached_tokens == 10


def test_with_chunk_reuse_an_order_saves_only_what_is_recomputed() -> None:
    boosted = booster(keep_last=0)
    boosted.boost("first", docs(2, 1, 3))

    context = boosted.boost("second", docs(1, 2, 9), note=words(5), recompute_ratio=0.2)

    assert [document.id for document in context.documents] == [1, 2, 9]


def test_an_order_that_waiting_requests_profit_from_stays_without_a_hit() -> None:
    retrieved = docs(1, 2)
    planned = Order.of([d.key for d in retrieved], [10, 10], [1, 0])

    context = booster().boost("first", retrieved, planned=planned, note=words(50))

    assert [document.id for document in context.documents] == [2, 1]


def test_the_note_asks_for_the_documents_in_the_order_to_be_sent() -> None:
    boosted = booster()
    boosted.boost("first", docs(2, 1, 3))
    asked: list[list[object]] = []

    def note(documents: Sequence[Document]) -> str:
        asked.append([document.id for document in documents])
        return "word"

    boosted.boost("second", docs(1, 2, 9), note=note)

    assert asked == [[2, 1, 9]]


def numbered(*texts: str) -> dict[str, object]:
    shown = "\n\n".join(f"[{at}] {text}" for at, text in enumerate(texts, 1))
    content = f"Cite the documents as [n].\n\n<documents>\n{shown}\n</documents>\n\nWhich?"
    return {"messages": [{"role": "user", "content": content}]}


def test_numbered_documents_move_without_a_note() -> None:
    """Citations are mapped back in the answer."""
    a, b, c = (
        "".join([f"The {name} is in flat {i}. " for i in range(6)]).strip()
        for name in ("lease", "ledger", "key")
    )
    proxy = RewritingProxy()
    proxy.send(numbered(a, b, c))

    (sent,) = proxy.send(numbered(b, a, c))

    assert f"[1] {a}" in sent.replace("\\n", "\n")
    assert f"[2] {b}" in sent.replace("\\n", "\n")
