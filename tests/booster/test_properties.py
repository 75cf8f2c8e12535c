"""The invariants of docs/architecture.md, each for random conversations of interleaved users."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.booster.booster import Booster
from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.types import Document, Request
from tests.integrity import check_index

modest = settings(max_examples=100, deadline=None)

# Few ids and texts, so that documents, ids and labels collide in every way.
DOCUMENTS = st.builds(
    Document,
    text=st.sampled_from(["a", "b", "c", "d " * 50]),
    id=st.sampled_from([None, 1, "1", True, 1.0, "two words", "x", 2, 3, 4]),
    title=st.sampled_from([None, None, "T"]),
)
SETTINGS = st.fixed_dictionaries(
    {
        "index": st.fixed_dictionaries({"capacity_tokens": st.sampled_from([None, 1, 60, 300])}),
        "ordering": st.fixed_dictionaries(
            {
                "enabled": st.booleans(),
                "min_saved_tokens": st.sampled_from([0, 1, 30]),
                "keep_last": st.none() | st.integers(0, 3),
                "tail": st.sampled_from(["relevance", "popularity"]),
            }
        ),
        "dedup": st.fixed_dictionaries({"enabled": st.booleans()}),
        "hints": st.fixed_dictionaries(
            {
                "order": st.booleans(),
                "location": st.booleans(),
                "label_template": st.sampled_from(["[Doc_{label}]", "{label}"]),
            }
        ),
        "session": st.fixed_dictionaries({"max_sessions": st.integers(1, 3)}),
    }
)


class Step(NamedTuple):
    """A user asks; their client fails, edits its history, or says what the payload holds."""

    user: str | None
    documents: list[Document]
    fails: bool
    keep: int | None  # turns of the history that the client still sends; None: all, not said


STEPS = st.lists(
    st.builds(
        Step,
        user=st.sampled_from([None, "ann", "bob", "cy"]),
        documents=st.lists(DOCUMENTS, max_size=5),
        fails=st.sampled_from([False, False, False, True]),
        keep=st.sampled_from([None, None, None, 0, 1, 2]),
    ),
    max_size=12,
)


@dataclass
class Client:
    """What a chat client resends: the contexts of its earlier turns, in their order."""

    turns: list[Context] = field(default_factory=list)
    says_history: bool = False

    def labels(self) -> dict[str, str]:
        """Label by key of everything that stands in the payload before the new turn."""
        return {
            document.key: label
            for context in self.turns
            for document, label in zip(context.documents, context.labels, strict=True)
        }


class Sent(NamedTuple):
    context: Context
    before: dict[str, str]  # label by key of the payload's earlier documents
    step: Step
    booster: Booster


def replay(sections: dict[str, Any], steps: list[Step]) -> Iterator[Sent]:
    """Play the steps against one Booster, with a client per user."""
    booster = Booster(Settings.model_validate(sections))
    clients: dict[str, Client] = {}
    for step in steps:
        client = clients.setdefault(step.user, Client()) if step.user else Client()
        if step.keep is not None:
            client.turns = client.turns[: step.keep]
            client.says_history = True  # from now on: its turns are no longer the session's
        elif step.user and not client.says_history and not booster.turns(step.user):
            client.turns = []  # the session was dropped, and the conversation begins anew
        history = client.labels() if client.says_history else None
        context = booster.boost("q", step.documents, session=step.user, history=history)
        yield Sent(context, client.labels(), step, booster)
        if step.fails and history is None:
            booster.rollback(context)
        elif not step.fails:
            client.turns.append(context)


@modest
@given(SETTINGS, STEPS)
def test_no_document_is_lost(sections: dict[str, Any], steps: list[Step]) -> None:
    for context, before, step, _ in replay(sections, steps):
        named = {
            label for hint in context.hints if hint.kind == "location" for label in hint.labels
        }
        assert context.retrieved == tuple(step.documents)
        for document, position in zip(context.retrieved, context.positions, strict=True):
            if position >= 0:
                assert context.documents[position].key == document.key
            else:
                assert before[document.key] in named


@modest
@given(SETTINGS, STEPS)
def test_no_document_is_doubled(sections: dict[str, Any], steps: list[Step]) -> None:
    for context, before, step, _ in replay(sections, steps):
        keys = [document.key for document in context.documents]
        assert set(keys) <= {document.key for document in step.documents}
        if sections["dedup"]["enabled"]:
            assert len(set(keys)) == len(keys)
            remembers = sections["session"] == {"max_sessions": 3}
            if sections["hints"]["location"] and remembers:
                assert not set(keys) & set(before)
        else:
            assert sorted(keys) == sorted(document.key for document in step.documents)


@modest
@given(SETTINGS, STEPS)
def test_a_location_hint_points_to_an_earlier_document_of_the_same_payload(
    sections: dict[str, Any], steps: list[Step]
) -> None:
    for context, before, _, _ in replay(sections, steps):
        dropped = [
            document
            for document, position in zip(context.retrieved, context.positions, strict=True)
            if position < 0
        ]
        hints = [hint for hint in context.hints if hint.kind == "location"]
        assert {label for hint in hints for label in hint.labels} == {
            before[document.key] for document in dropped
        }
        for hint in hints:
            is_all = len(hint.labels) > 1
            assert "all documents" in hint.text if is_all else hint.labels[0] in hint.text
            assert not is_all or len(hints) == 1


@modest
@given(SETTINGS, STEPS)
def test_a_label_means_one_document_in_a_payload(
    sections: dict[str, Any], steps: list[Step]
) -> None:
    for context, before, _, _ in replay(sections, steps):
        owners = {label: key for key, label in before.items()}
        assert len(owners) == len(before)
        for document, label in zip(context.documents, context.labels, strict=True):
            assert owners.setdefault(label, document.key) == document.key


@modest
@given(SETTINGS, STEPS)
def test_the_order_hint_gives_the_relevance_order(
    sections: dict[str, Any], steps: list[Step]
) -> None:
    for context, _, step, _ in replay(sections, steps):
        hints = [hint for hint in context.hints if hint.kind == "order"]
        relevance = [p for p in dict.fromkeys(context.positions) if p >= 0]
        labels = tuple(dict.fromkeys(context.labels[p] for p in relevance))  # copies share one
        shown = [context.labels.index(label) for label in labels]
        if shown == sorted(shown) or not sections["hints"]["order"]:
            assert hints == []
        else:
            assert [hint.labels for hint in hints] == [labels]
            assert step.documents


@modest
@given(SETTINGS, STEPS)
def test_index_and_sessions_stay_sound_and_bounded(
    sections: dict[str, Any], steps: list[Step]
) -> None:
    for context, _, _, booster in replay(sections, steps):
        check_index(booster.index)
        assert len(booster.sessions) <= sections["session"]["max_sessions"]
        assert context.predicted_cached_tokens >= 0


@modest
@given(SETTINGS, STEPS)
def test_equal_leading_documents_give_equal_leading_bytes(
    sections: dict[str, Any], steps: list[Step]
) -> None:
    rendered = [sent.context for sent in replay(sections, steps) if sent.context.turn <= 1]
    for one in rendered:
        for other in rendered:
            shared = 0
            for a, b in zip(one.documents, other.documents, strict=False):
                if a != b or one.labels[shared] != other.labels[shared]:
                    break
                shared += 1
            equal = [a == b for a, b in zip(one.documents, other.documents, strict=False)]
            leading = equal.index(False) if False in equal else len(equal)
            if not one.session and not other.session:
                assert shared == leading
            blocks = one.render_documents().split("\n\n")
            assert blocks[:shared] == other.render_documents().split("\n\n")[:shared]


@modest
@given(SETTINGS, STEPS, st.randoms(use_true_random=False))
def test_a_batch_keeps_turns_in_order_and_loses_nothing(
    sections: dict[str, Any], steps: list[Step], shuffler: random.Random
) -> None:
    sections["session"] |= {"max_sessions": 10}
    requests = [Request("q", tuple(step.documents), session=step.user) for step in steps]
    shuffler.shuffle(requests)
    booster = Booster(Settings.model_validate(sections))

    plan = booster.boost_batch(requests)

    assert sorted(plan.order) == list(range(len(requests)))
    clients: dict[str, Client] = {}
    last: dict[str, int] = {}
    for context, i in zip(plan.contexts, plan.order, strict=True):
        assert context.retrieved == requests[i].documents
        client = clients.setdefault(context.session, Client()) if context.session else Client()
        if context.session:
            assert i > last.get(context.session, -1)
            last[context.session] = i
        for document, position in zip(context.retrieved, context.positions, strict=True):
            assert position >= 0 or document.key in client.labels()
        client.turns.append(context)
    check_index(booster.index)
