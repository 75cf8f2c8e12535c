"""Chat client as applications write it, and invariants of the requests that the engine receives."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai

from tests.fakes import FakeEngine, Received

URL = "/v1/chat/completions"
HINT = re.compile(r"Please refer to (\[Doc_[^\]]+\]) in the previous conversation")


@dataclass(eq=False)  # a branch that has said nothing yet is another chat
class Chat:
    """Chat client that keeps its history, without the documents of the `ragboost` object.

    Attributes:
        session: session id; None lets the proxy recognise the conversation by its history.
        user: API key.
        stream: request streams, with the official SDK.
        resends: give the documents of earlier turns again, behind the new ones.
        messages: history in its original form.
        given: documents given so far, each once.
        answer: text of the last response.
    """

    client: httpx.Client
    engine: FakeEngine
    session: str | None = None
    user: str = "someone"
    stream: bool = False
    resends: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    answer: str = ""
    response: httpx.Response | None = None

    def ask(
        self,
        question: str,
        documents: list[Any] | None = None,
        *,
        boost: bool = True,
        **fields: Any,
    ) -> Received:
        """Send a question, append it and the answer, and return the engine's received request."""
        self.messages = [*self.messages, {"role": "user", "content": question}]
        if self.resends:
            earlier = [one for one in self.given if one not in (documents or ())]
            self.given = documents = [*(documents or ()), *earlier]
        received = self.send(documents, boost=boost, **fields)
        self.messages = [*self.messages, {"role": "assistant", "content": self.answer}]
        return received

    def send(
        self, documents: list[Any] | None = None, *, boost: bool = True, **fields: Any
    ) -> Received:
        """Send the history unchanged."""
        ours: dict[str, Any] = {} if self.session is None else {"session_id": self.session}
        if documents is not None:
            ours["documents"] = documents
        if not boost:
            ours["options"] = {"boost": False}
        body = {"model": "m", "messages": self.messages, **fields}
        if ours:
            body["ragboost"] = ours
        if self.stream:
            self.answer = self._stream(body)
        else:
            headers = {"authorization": f"Bearer {self.user}"}
            self.response = self.client.post(URL, json=body, headers=headers)
            assert self.response.status_code == 200, self.response.text
            self.answer = self.response.json()["choices"][0]["message"]["content"]
        return self.engine.requests[-1]

    def fork(self) -> "Chat":
        """Return a copy of the conversation that continues separately."""
        return replace(self, messages=list(self.messages), given=list(self.given))

    def _stream(self, body: dict[str, Any]) -> str:
        messages = body.pop("messages")
        with (
            openai.OpenAI(base_url=f"{self.client.base_url}/v1", api_key=self.user) as sdk,
            sdk.chat.completions.create(
                model="m", messages=messages, stream=True, extra_body=body
            ) as events,
        ):
            return "".join(event.choices[0].delta.content or "" for event in events)


def text_of(i: int) -> str:
    return f"Text of document {i}, which says {i * i}."


def document(i: int) -> dict[str, Any]:
    return {"id": i, "text": text_of(i)}


def contents(received: Received) -> list[str]:
    return [message["content"] for message in received.json["messages"]]


def check_hints_point_into_the_payload(received: Received) -> None:
    texts = contents(received)
    for at, text in enumerate(texts):
        for label in HINT.findall(text):
            earlier = "".join(texts[:at])
            assert f"{label}\n" in earlier, f"{label} is referenced but missing"


def check_extends(new: Received, old: Received) -> None:
    before, now = old.json["messages"], new.json["messages"]
    assert now[: len(before)] == before
    assert new.prompt.startswith(old.prompt.removesuffix("<|assistant|>\n"))
