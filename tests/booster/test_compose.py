from dataclasses import replace
from typing import Any

import pytest

from ragboost.booster.compose import check_context
from ragboost.booster.context import Context
from ragboost.booster.session_state import CarriedDocuments
from ragboost.errors import ContextIndexError
from ragboost.hints import location_hints
from ragboost.types import Document

A, B, C = (Document(name, id=name) for name in "abc")
KNOWN = {C.key: "[c]"}
TEMPLATE = "See {document}"


def composed(**changes: Any) -> Context:
    """Documents a and b, and a reference to c."""
    hints = location_hints(["[c]"], template=TEMPLATE)
    good = Context("?", (B, A), (A, B, C), (1, 0, -1), ("[b]", "[a]"), hints)
    return replace(good, **changes)


def check(context: Context, **history: Any) -> None:
    past = CarriedDocuments(KNOWN, KNOWN, is_empty=False, is_complete=True, owners={})
    past = past._replace(**history)
    owners = {label: key for key, label in past.known.items()}
    check_context(context, history=past._replace(owners=owners))


def test_a_right_context_passes() -> None:
    check(composed())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": (1, 0)}, "3 retrieved documents have 2 positions"),
        ({"labels": ("[b]",)}, "2 documents have 1 labels"),
        ({"positions": (0, 1, -1)}, "is not at 0"),
        ({"positions": (1, -1, -1)}, "was not retrieved"),
        ({"positions": (1, 5, -1)}, "was not retrieved"),
        ({"documents": (B, A, C), "labels": ("[b]", "[a]", "[c]")}, "was not retrieved"),
        ({"hints": ()}, "is lost: no hint refers to it"),
        ({"hints": location_hints(["[c]", "[z]"], template=TEMPLATE)}, "outside this payload"),
        ({"labels": ("[b]", "[b]")}, "two documents have the label"),
        ({"labels": ("[b]", "[c]")}, "two documents have the label"),
    ],
)
def test_a_wrong_context_does_not_pass(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ContextIndexError, match=message):
        check(composed(**changes))


def test_a_reference_to_a_document_of_another_payload_does_not_pass() -> None:
    with pytest.raises(ContextIndexError, match="is lost"):
        check(composed(), carried={})


def test_a_copy_passes_only_where_copies_are_sent() -> None:
    twice = Context("?", (A, A), (A, A), (0, 1), ("[a]", "[a]"))
    past = CarriedDocuments({}, {}, is_empty=True, is_complete=True, owners={})

    check_context(twice, history=past, allow_copies=True)
    with pytest.raises(ContextIndexError, match="contains a document twice"):
        check_context(twice, history=past)
