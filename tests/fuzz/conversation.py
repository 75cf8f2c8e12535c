"""One client's conversation: it keeps the history, writes requests and takes note of answers.

Knows what a client knows, and what the backend received for its last request.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz.backend import NUMBER_HEADER, STATUSES, Answer
from tests.fuzz.corpus import Doc
from tests.fuzz.requests import Asked, Family, Headers, Reply
from tests.fuzz.shapes import RESPONSES, Shape, Written

_EXTRAS: Sequence[Mapping[str, str]] = (
    {},
    {"temperature": "0.70"},
    {"x_big": "123456789012345678901234567890", "seed": " 7"},
    {"metadata": '{"a" : [1.0e2, "\\u00e9\\ud83d\\ude00"], "b":null}', "top_p": "1"},
)
_SEPARATORS = ((", ", ": "), (",", ":"), (" , ", " : "))


@dataclass(frozen=True)
class Turn:
    """One turn as the client keeps it: messages as written, and the documents inside them."""

    messages: tuple[str, ...]
    documents: tuple[Doc, ...] = ()


@dataclass
class Conversation:
    """A conversation whose history the client resends.

    Attributes:
        owner: name in the markers of its documents.
        family: shared with its forks.
        caller: credentials and other headers.
        fields: `model`, `cache_salt`, `user`, `session_id` and so on.
        session: the id in the `ragboost` object, or None.
        shape: of its documents; may change from turn to turn.
        is_strict: what was sent must be sent again, byte for byte, as long as the client changes
            nothing.
        spacing: of its JSON.
        front: messages before all turns.
        turns: the history.
        sent: what the backend received for the first messages of the history.
        last: the latest request.
    """

    owner: str
    family: Family
    caller: Headers
    fields: Mapping[str, Any]
    session: str | None
    shape: Shape
    is_strict: bool
    spacing: int = 0
    front: tuple[str, ...] = ()
    front_documents: tuple[Doc, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    sent: tuple[str, ...] = ()
    last: Asked | None = None

    @property
    def history(self) -> tuple[str, ...]:
        """All messages before the next turn."""
        return (*self.front, *(message for turn in self.turns for message in turn.messages))

    def fork(self) -> "Conversation":
        """Return a copy that goes its own way, in the same family."""
        return replace(self, turns=list(self.turns))

    def changed(self, turns: Sequence[Turn]) -> None:
        """Replace the history; what was sent still holds up to the first change."""
        self.turns = list(turns)
        kept = 0
        old = self.last.messages if self.last else ()
        for new, before in zip(self.history, old, strict=False):
            if new != before:
                break
            kept += 1
        self.sent = self.sent[:kept]

    def dump(self, value: Any) -> str:
        """Write JSON in this client's spacing."""
        return json.dumps(value, separators=_SEPARATORS[self.spacing % 3], ensure_ascii=False)

    def respaced(self, message: str) -> str:
        """Return a message in the present spacing."""
        return self.dump(json.loads(message))

    def ask(
        self,
        rng: random.Random,
        number: int,
        *,
        move: str,
        documents: Sequence[Doc],
        question: str,
        answer: Answer,
        boost: bool = True,
    ) -> Asked:
        """Write the request of a new turn."""
        written = self.shape.write(documents, question)
        if written.front and not self.turns and not self.front:
            self.front = tuple(self.dump(message) for message in written.front)
            self.front_documents = tuple(documents)
            self.sent = ()  # by a failed first turn, which had no such beginning
        elif written.front:
            documents = ()  # the documents stand in the first message
        history = self.history
        messages = (*history, *(self.dump(message) for message in written.messages))
        extras = rng.choice(_EXTRAS)
        given = tuple(documents)
        is_inside = self.shape.is_inside
        is_restored = boost or not is_inside  # else the client wants its own bytes
        older = tuple(d for turn in self.turns for d in turn.documents) + self.front_documents
        asked = Asked(
            number,
            move,
            self.shape.path,
            (*self.caller, (NUMBER_HEADER.encode(), str(number).encode())),
            self._body(written, messages, extras=extras, answer=answer, boost=boost),
            self.family,
            self.shape,
            given,
            tuple({*older, *given}),
            question,
            messages,
            len(history),
            self.sent[: len(history)] if self.is_strict and is_restored else (),
            extras,
            boost,
            _status(answer),
            answer,
        )
        self.family.give(given)
        if not (boost and asked.status == 200 and (self.shape.is_ours or not given)):
            self.family.is_clean = False
        self.last = asked
        self._pending = Turn(messages[len(history) :], given if is_inside else ())
        return asked

    def again(self, number: int, answer: Answer) -> Asked:
        """Send the last request again, as a client does that got no answer."""
        assert self.last is not None, "nothing to repeat"
        last = self.last
        headers = (*last.headers[:-1], (last.headers[-1][0], str(number).encode()))
        answer = replace(answer, is_stream=last.answer.is_stream)
        self.family.give(last.given)
        self.last = replace(
            last,
            number=number,
            move="retry",
            headers=headers,
            answer=answer,
            status=_status(answer),
            sent=self._sent_before(last) if self.is_strict else (),
        )
        return self.last

    def received(self, payload: Sequence[str] | None, reply: Reply) -> None:
        """Take note of what the backend received, and of the answer."""
        assert self.last is not None, "nothing was asked"
        asked = self.last
        is_same = payload is not None and len(payload) == len(asked.messages)
        is_kept = is_same and (asked.is_boosted or not asked.shape.is_inside)
        self.sent = tuple(payload) if payload is not None and is_kept else ()
        for mine, theirs in zip(asked.messages, self.sent, strict=False):
            self.family.sent.setdefault(mine, set()).add(theirs)
        if reply.status != 200 or not reply.is_complete or asked.answer.kind != "ok":
            return
        if not asked.messages:
            return  # a prompt has no history
        said = self.dump({"role": "assistant", "content": asked.answer.text})
        turn = self._pending
        if len(self.history) == asked.num_history:
            self.turns.append(Turn((*turn.messages, said), turn.documents))
            if self.sent:
                self.sent = (*self.sent, said)

    def _sent_before(self, last: Asked) -> tuple[str, ...]:
        return self.sent[: len(last.messages)]

    def _body(
        self,
        written: Written,
        messages: Sequence[str],
        *,
        extras: Mapping[str, str],
        answer: Answer,
        boost: bool,
    ) -> str:
        fields = {name: self.dump(value) for name, value in self.fields.items()}
        for name, value in written.fields.items():
            if name != "ragboost":
                fields[name] = self.dump(value)
        ours = dict(written.fields.get("ragboost", {}))
        if self.session is not None:
            ours["session_id"] = self.session
        if not boost:
            ours["options"] = {"boost": False}
        if ours:
            fields["ragboost"] = self.dump(ours)
        if answer.is_stream:
            fields["stream"] = "true"
        if written.messages:
            name = "input" if self.shape.path == RESPONSES else "messages"
            fields[name] = f"[{', '.join(messages)}]"
        pairs = [f'"{name}":{value}' for name, value in {**fields, **extras}.items()]
        return "{" + (", " if self.spacing else ",").join(pairs) + "}"


def _status(answer: Answer) -> int:
    return STATUSES.get(answer.kind, 200)
