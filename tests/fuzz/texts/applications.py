"""Applications that put documents into texts, and their conversations.

Knows what a client knows: the frame and the place of each document. Does not know what the proxy
makes of them.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.backend import NUMBER_HEADER
from tests.fuzz.corpus import Doc
from tests.fuzz.requests import Headers
from tests.fuzz.shapes import CHAT, COMPLETIONS, MESSAGES
from tests.fuzz.texts.contents import Contents, write_file
from tests.fuzz.texts.layouts import LAYOUTS, Layout
from tests.fuzz.texts.oracle import Text
from tests.fuzz.texts.templates import HEADS, TAILS, Template

_PLACES = {
    "system": 4,
    "user": 5,
    "parts": 1,
    "tool": 3,
    "prompt": 1,
    "anthropic": 1,
    "both": 1,
    "object": 1,
    "field": 1,
    "pasted": 1,
    "plain": 1,
}
_POOL = 9
_MAX_TURNS = 4


@dataclass(frozen=True)
class TextMessage:
    """A message as the client writes it: its JSON, and the texts in it, in order."""

    raw: str
    texts: tuple[Text, ...]


@dataclass(frozen=True)
class TextRequest:
    """One request.

    Attributes:
        number: in its episode.
        path: of the endpoint.
        headers: with the number and the tenant's key.
        body: its JSON.
        about: tenant, layout, place and template, for reports.
        outside: texts of the body that are not in messages, by field.
        elements: of the `documents` field.
        messages: of the body.
        sent: what the first messages must be sent as: the backend received them so before.
    """

    number: int
    path: str
    headers: Headers
    body: str
    about: str
    outside: dict[str, Text]
    messages: tuple[TextMessage, ...]
    sent: tuple[str, ...] = ()
    elements: tuple[Any, ...] = ()

    @property
    def texts(self) -> list[Text]:
        """All texts that the client wrote, in order."""
        return [*self.outside.values(), *(text for m in self.messages for text in m.texts)]


@dataclass
class Talk:
    """One conversation: the client's messages so far, and what the backend received for them."""

    messages: list[TextMessage] = field(default_factory=list)
    sent: tuple[str, ...] = ()
    pending: tuple[TextMessage, ...] = ()
    num_turns: int = 0


class Application:
    """One application of a tenant: a layout in a template at a place, over a pool of documents.

    Args:
        rng: the only source of chance.
        tenant: API key of its requests.
        number: of the application in its episode.
        layout: of the documents; drawn if None.
        place: of the documents; drawn if None.
    """

    def __init__(
        self,
        rng: random.Random,
        tenant: str,
        *,
        number: int,
        layout: Layout | None = None,
        place: str | None = None,
    ) -> None:
        self._rng = rng
        self.tenant = tenant
        self.layout = layout or rng.choice(LAYOUTS)
        self.place = place or rng.choices([*_PLACES], [*_PLACES.values()])[0]
        self._contents = Contents(
            rng,
            f"{tenant}{number}",
            has_lists=not self.layout.is_bare,
            has_headers=not (self.place == "tool" and self.layout.is_headed),
        )
        is_bare = self.place == "tool" and (self.layout.is_json or rng.random() < 0.6)
        self._template = Template("", "") if is_bare else self._draw_template()
        self._pool = [self._contents.draw(at) for at in range(_POOL)]
        self._talks: list[Talk] = []
        self.num_asked = 0
        self.faults: set[tuple[str, str]] = set()  # reported: one of each kind is enough

    def ask(self, number: int) -> TextRequest:
        """Write the next request: of a conversation that goes on, or of a new one."""
        rng = self._rng
        self.num_asked += 1
        most = 0 if self.place in ("object", "field") else _MAX_TURNS  # without a name: alone
        open_talks = [talk for talk in self._talks if talk.num_turns < most]
        talk = rng.choice(open_talks) if open_talks and rng.random() < 0.5 else Talk()
        if talk not in self._talks:
            self._talks.append(talk)
        if rng.random() < 0.2:
            self._pool[rng.randrange(_POOL)] = self._contents.draw(_POOL + self.num_asked)
        self._current = talk
        documents = rng.sample(self._pool, rng.choice((2, 2, 3, 4, 5)))
        if rng.random() < 0.04:
            documents.append(rng.choice(documents))
        question = f"What follows, number {number} of {self.tenant}?"
        return self._write(talk, documents, question=question, number=number)

    def received(self, messages: Sequence[str], answer: str = "") -> None:
        """Take note of what the backend received; it has answered, and the client has read it."""
        talk = self._current
        said, read = (
            json.dumps({"role": "assistant", "content": text})
            for text in (ANSWER, answer or ANSWER)
        )
        is_same = len(messages) == len(talk.pending)
        talk.sent = (*messages, said) if is_same else ()
        talk.messages = [
            *talk.pending,
            TextMessage(read, (Text(answer or ANSWER, is_answer=True),)),
        ]
        talk.num_turns += 1

    def _draw_template(self) -> Template:
        rng = self._rng
        head = rng.choice((*HEADS, self._contents.mark() + "\n\n"))
        return Template(head, rng.choice(TAILS))

    def _listed(self, documents: Sequence[Doc], question: str) -> Text:
        template = self._template
        tails = (template.tail, self._rng.choice(TAILS))
        tail = tails[self._rng.random() < 0.08].replace("§q", question)
        return Text(template.head, tail, self.layout, tuple(documents))

    def _write(
        self, talk: Talk, documents: Sequence[Doc], *, question: str, number: int
    ) -> TextRequest:
        outside: dict[str, Text] = {}
        path, history = CHAT, list(talk.messages)
        if self.place == "prompt":
            path, history = COMPLETIONS, []
            outside["prompt"] = self._listed(documents, question)
        elif self.place == "anthropic":
            path = MESSAGES
            outside["system"] = self._listed(documents, "as asked below")
            history.append(_message("user", Text(question)))
        elif self.place in ("object", "field"):
            given = tuple(document for document in documents if document.text.strip())
            rendered = given if self.place == "object" else ()
            history.append(_message("user", Text(question, documents=rendered)))
            documents = given
        elif self.place in ("system", "both"):
            system = _message("system", self._listed(documents, "as asked below"))
            asked = Text(question)
            if self.place == "both":
                again = self._rng.sample(self._pool, 2)
                asked = self._listed(again, question)
            history = [system, *history[1:], _message("user", asked)]
        else:
            history += self._new_messages(documents, question)
        talk.pending = tuple(history)
        return self._request(talk, outside, documents, path=path, number=number)

    def _new_messages(self, documents: Sequence[Doc], question: str) -> list[TextMessage]:
        if self.place == "tool":
            return _called(question, self._listed(documents, question))
        if self.place == "parts":
            return [_message("user", self._listed(documents, ""), Text(question))]
        if self.place == "pasted":
            return self._pasted(question)
        if self.place == "plain":
            return [_message("user", Text(f"{self._contents.prose()}\n\n{question}"))]
        return [_message("user", self._listed(documents, question))]

    def _pasted(self, question: str) -> list[TextMessage]:
        """Paste a file into the question, or read one with a tool."""
        rng = self._rng
        content = write_file(rng, [self._contents.sentence() for _ in range(4)])
        roll = rng.random()
        if roll < 0.5:
            return _called(question, Text(content))
        if roll < 0.75:
            return [_message("user", Text(f"Which is twice?\n```\n{content}\n```\n{question}"))]
        return [
            _message("user", Text(f"Which is twice?\n\n{content}\n\n{question}", is_pasted=True))
        ]

    def _request(
        self,
        talk: Talk,
        outside: dict[str, Text],
        documents: Sequence[Doc],
        *,
        path: str,
        number: int,
    ) -> TextRequest:
        fields: dict[str, Any] = {"model": "m", "max_tokens": 8}
        elements = [{"id": d.id, "title": d.title, "text": d.text} for d in documents]
        if self.place == "object" and elements:
            fields["ragboost"] = {"documents": elements}
        if self.place == "field":
            fields["documents"] = elements
        fields |= {name: text.written for name, text in outside.items()}
        body = json.dumps(fields)
        if path != COMPLETIONS:
            listed = ", ".join(message.raw for message in talk.pending)
            body = f'{body[:-1]}, "messages": [{listed}]}}'
        kept = 0
        for before, now in zip(talk.messages, talk.pending, strict=False):
            if before.raw != now.raw:
                break
            kept += 1
        key = (b"authorization", f"Bearer {self.tenant}".encode())
        headers = (key, (NUMBER_HEADER.encode(), str(number).encode()))
        about = f"{self.tenant}, {self.layout.name!r}, {self.place}, {self._template}"
        return TextRequest(
            number,
            path,
            headers,
            body,
            about,
            outside,
            talk.pending,
            talk.sent[:kept],
            tuple(fields.get("documents", ())),
        )


ANSWER = "It is so [1][0], [2] and [3]; see [5], [4]."


def _message(role: str, *texts: Text, **fields: Any) -> TextMessage:
    written = [text.written for text in texts]
    content: Any = written[0]
    if len(written) > 1:
        content = [{"type": "text", "text": text} for text in written]
    return TextMessage(json.dumps({"role": role, "content": content, **fields}), texts)


def _called(question: str, result: Text) -> list[TextMessage]:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [
        _message("user", Text(question)),
        TextMessage(json.dumps(asks), ()),
        _message("tool", result, tool_call_id="c1"),
    ]
