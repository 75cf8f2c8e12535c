"""A conversation over the chat-session API: the proxy keeps the history, the client sends turns."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.backend import NUMBER_HEADER, STATUSES, Answer
from tests.fuzz.corpus import Corpus
from tests.fuzz.requests import Asked, Family, Headers, Reply
from tests.fuzz.shapes import OURS, Shape, question_alone

_CREATE = Shape("new session", question_alone, "/v1/sessions", is_inside=True)


@dataclass
class SessionChat:
    """One session.

    Attributes:
        owner: name in the markers of its documents.
        caller: credentials.
        dedups: a document is sent once.
        is_strict: the history must be sent as before.
        id: given by the proxy; empty before the session is created.
        sent: what the backend received for the turns so far.
    """

    owner: str
    caller: Headers
    dedups: bool
    is_strict: bool
    id: str = ""
    sent: tuple[str, ...] = ()
    family: Family = field(default_factory=Family)
    last: Asked | None = None

    def ask(self, rng: random.Random, number: int, *, corpus: Corpus, answer: Answer) -> Asked:
        """Create the session, or ask its next turn."""
        headers = (*self.caller, (NUMBER_HEADER.encode(), str(number).encode()))
        if not self.id:
            self.last = self._create(number, headers)
            return self.last
        question = f"Question {number} of {self.owner}: what follows?"
        given = tuple(corpus.retrieve(self.owner)) if rng.random() < 0.85 else ()
        body: dict[str, Any] = {"query": question}
        if rng.random() < 0.4:
            body = {"messages": [{"role": "user", "content": question}]}
        documents = [{"text": d.text, "id": d.id, "title": d.title} for d in given]
        is_boosted = rng.random() > 0.06
        if not is_boosted:
            body["ragboost"] = {"documents": documents, "options": {"boost": False}}
        elif documents:
            body["documents"] = documents
        if answer.is_stream:
            body["stream"] = True
        self.family.give(given)
        if not is_boosted or answer.kind != "ok":
            self.family.is_clean = False
        self.last = Asked(
            number,
            "session turn",
            f"/v1/sessions/{self.id}/chat/completions",
            headers,
            json.dumps(body),
            self.family,
            OURS,
            given,
            given,
            question,
            (),
            0,
            self.sent if self.is_strict else (),
            {},
            is_boosted,
            STATUSES.get(answer.kind, 200),
            answer,
            has_history=True,
        )
        return self.last

    def received(self, payload: Sequence[str] | None, reply: Reply) -> None:
        """Take note of the session's id, or of the turn that the proxy has stored."""
        assert self.last is not None, "nothing was asked"
        if not self.id:
            self.id = str(json.loads(reply.body)["id"])
            return
        if reply.status == 404:
            self.id, self.sent = "", ()
        is_stored = reply.status == 200 and reply.is_complete and self.last.answer.kind == "ok"
        if payload is not None and is_stored:
            said = json.dumps({"role": "assistant", "content": self.last.answer.text})
            self.sent = (*payload, said)

    def _create(self, number: int, headers: Headers) -> Asked:
        body = json.dumps({"model": "m", "system": f"Be brief, {self.owner}."})
        empty = Answer("")
        return Asked(
            number,
            "new session",
            "/v1/sessions",
            headers,
            body,
            self.family,
            _CREATE,
            (),
            (),
            "",
            (),
            0,
            (),
            {},
            True,
            201,
            empty,
            has_history=True,
        )
