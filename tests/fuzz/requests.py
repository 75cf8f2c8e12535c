"""What a client asks, and what the driver knows about it: the facts that the oracle compares with.

Knows bodies as the client wrote them. Does not know what the proxy makes of them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.fuzz.backend import Answer
from tests.fuzz.corpus import Doc
from tests.fuzz.shapes import Shape

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass
class Family:
    """All conversations that may lawfully share documents: one, its forks, or one session name.

    Attributes:
        given: markers of the documents that its requests gave.
        times: how often each text was given.
        variants: the ids and titles under which each text was given.
        sent: by message of the client, the forms in which the backend received it.
        is_clean: all documents came in `ragboost` objects of answered, boosted requests, so that
            none may be sent twice.
    """

    given: set[str] = field(default_factory=set)
    times: Counter[str] = field(default_factory=Counter)
    variants: dict[str, set[tuple[object, object]]] = field(default_factory=dict)
    sent: dict[str, set[str]] = field(default_factory=dict)
    is_clean: bool = True

    def give(self, documents: tuple[Doc, ...]) -> None:
        """Count the documents of one more request."""
        for document in documents:
            self.given.add(document.marker)
            self.times[document.text] += 1
            variant = (repr(document.id), document.title)
            self.variants.setdefault(document.text, set()).add(variant)


@dataclass(frozen=True)
class Asked:
    """One request of a client.

    Attributes:
        number: in its episode.
        move: what the client did: `new`, `on`, `retry`, `edit` and so on.
        path: of the endpoint.
        headers: with the number.
        body: its bytes.
        family: whose documents may occur.
        shape: how the documents are handed over.
        given: the documents of this turn, in relevance order.
        held: the documents that the body contains.
        question: the text that the user asks.
        messages: the client's messages, as it wrote them.
        num_history: how many of them are older than this turn.
        sent: what the first messages must be sent as; shorter than `num_history` if unknown.
        extras: fields that the proxy does not know, as written.
        is_boosted: the client wants its documents boosted.
        status: of the response.
        answer: of the backend.
        has_history: the proxy keeps the history: the messages are those of this turn only.
    """

    number: int
    move: str
    path: str
    headers: Headers
    body: str
    family: Family
    shape: Shape
    given: tuple[Doc, ...]
    held: tuple[Doc, ...]
    question: str
    messages: tuple[str, ...]
    num_history: int
    sent: tuple[str, ...]
    extras: Mapping[str, str]
    is_boosted: bool
    status: int
    answer: Answer
    has_history: bool = False


@dataclass(frozen=True)
class Reply:
    """What the client received.

    Attributes:
        status: 0 if no response began.
        body: all bytes.
        is_complete: the response ended as announced.
        headers: of the response.
    """

    status: int
    body: bytes
    is_complete: bool
    headers: Headers = ()
