"""A game of clients who ask, call tools, change the shape of their documents, branch, edit, retry.

What the engine got for a client's earlier request it gets again, byte for byte, in every later one
that begins with the same messages. Of messages that got documents from the `ragboost` object, as
long as the client gives these; without a name of the conversation, only while the question is the
same. Where another client of the same key sent the same messages, nothing
tells the two apart: these are counted, not compared.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest

from tests.requests.rewriting_proxy import RewritingProxy

OPENINGS, QUESTIONS, ANSWERS = ("Hello", "Why?"), ("And when?", "Why?", "more"), ("ok", "Yes.")
NUM_TURNS = 6


class Asked(NamedTuple):
    client: "Client"
    messages: tuple[str, ...]
    sent: tuple[str, ...]
    question: int  # index of the last user message
    beside: tuple[int, ...]  # documents in the object
    given: dict[int, tuple[int, ...]]  # the same of this and earlier requests, by question


@dataclass(eq=False)
class World:
    """`num_documents` are shared by all; the fewer, the more alike are conversations."""

    num_clients: int
    num_documents: int
    unique_answers: float  # share of the answers that no other client gets
    is_named: bool = False
    num_others: int = 0  # who begin with the same words, at times
    has_marks: bool = False  # the last messages of each request end a cached prefix


@dataclass(eq=False)
class Client:
    name: str
    key: str
    messages: list[str] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    num_turns: int = 0

    def branch(self, name: str) -> "Client":
        return replace(
            self, name=name, messages=[*self.messages], beside=[*self.beside], asked=[*self.asked]
        )


def text_of(number: int) -> str:
    return (
        f"DOC#{number}# "
        + f"The lease of office {number} was signed in May by person {number}. " * 4
    )


def tags(numbers: Sequence[int]) -> str:
    return "\n".join(f'<document id="{i}">{text_of(i)}</document>' for i in numbers)


def message(role: str, content: Any, **fields: Any) -> str:
    return json.dumps({"role": role, "content": content, **fields})


MARK = "cache_control"


def marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message as a list of one text that ends a cached prefix."""
    if not isinstance(message["content"], str):
        return message
    part = {"type": "text", "text": message["content"], MARK: {"type": "ephemeral"}}
    return {**message, "content": [part]}


def unmarked(message: str) -> str:
    """The message with its text alone, as a chat template sees it."""
    value = json.loads(message)
    if isinstance(value["content"], list):
        value["content"] = value["content"][0]["text"]
    return json.dumps(value)


class Game:
    def __init__(self, seed: int, world: World) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.proxy = RewritingProxy()
        self.clients: list[Client] = []
        self.asked: dict[tuple[str, ...], list[Asked]] = {}  # by messages with which they begin
        self.counts: Counter[str] = Counter()
        self._numbers = iter(range(100, 10**9))

    def play(self, num_moves: int) -> Counter[str]:
        for _ in range(num_moves):
            if len(self.clients) < self.world.num_clients:
                self.clients.append(self._new())
            client = self.rng.choice(self.clients)
            self._move(client)
            if client.num_turns >= NUM_TURNS:
                self.clients.remove(client)
        return self.counts

    def _new(self) -> Client:
        number = next(self._numbers)
        is_alone = self.world.num_clients == 1
        return Client(f"client {number}", f"key {number if is_alone else 0}")

    def _move(self, client: Client) -> None:
        rng = self.rng
        move = rng.choice(["turn"] * 8 + ["retry", "branch", "edit", "drop", "others"])
        if move == "retry" and client.asked:
            last = client.asked[-1]
            self._ask(client, [*last.messages], list(last.beside))
        elif move == "branch" and len(client.messages) > 2:
            end = rng.randrange(2, len(client.messages) + 1)
            branch = client.branch(f"{client.name}, branch {next(self._numbers)}")
            branch.name = client.name if self.world.is_named else branch.name
            branch.messages = branch.messages[:end]
            while branch.messages and json.loads(branch.messages[-1])["role"] != "assistant":
                branch.messages.pop()
            self.clients.append(branch)
        elif move == "edit" and client.messages:
            at = rng.randrange(len(client.messages))
            edited = json.loads(client.messages[at])
            if isinstance(edited["content"], str):
                edited["content"] += f" edit {next(self._numbers)}"
            client.messages[at] = json.dumps(edited)
        elif move == "drop":
            client.beside = []
        elif move == "others":
            opening = client.messages[:1] or [message("user", OPENINGS[0])]
            for _ in range(self.world.num_others):
                other = Client("another", client.key)
                self._ask(other, opening, [next(self._numbers)])
        else:
            self._turn(client)

    def _documents(self) -> list[int]:
        rng, num = self.rng, self.world.num_documents
        return (
            rng.sample(range(num), rng.randint(1, 3))
            if num
            else [next(self._numbers) for _ in range(rng.randint(1, 3))]
        )

    def _turn(self, client: Client) -> None:
        rng = self.rng
        client.num_turns += 1
        question = rng.choice(QUESTIONS if client.messages else OPENINGS)
        shape = rng.choice(["plain", "object", "tags", "steps", "steps"])
        if shape == "object":
            new = [i for i in self._documents() if i not in client.beside]
            client.beside = client.beside + new if rng.random() < 0.7 else new + client.beside
        if shape == "tags":
            question = f"{tags(self._documents() + self._documents())}\n\n{question}"
        client.messages.append(message("user", question))
        for _ in range(rng.randint(1, 3) if shape == "steps" else 0):
            if rng.random() < 0.7:
                self._ask(client, client.messages, client.beside)
            call = {"name": "search", "arguments": "{}"}
            calls = [{"id": "call_1", "type": "function", "function": call}]
            client.messages.append(message("assistant", None, tool_calls=calls))
            documents = self._documents()
            results = [
                tags(documents),
                json.dumps([{"id": i, "text": text_of(i)} for i in documents]),
                f"Result of {self._said(client)}",
            ]
            client.messages.append(message("tool", rng.choice(results), tool_call_id="call_1"))
        self._ask(client, client.messages, client.beside)
        client.messages.append(message("assistant", self._said(client)))

    def _said(self, client: Client) -> str:
        is_unique = self.rng.random() < self.world.unique_answers
        return f"Answer to {client.name}" if is_unique else self.rng.choice(ANSWERS)

    def _ask(self, client: Client, messages: list[str], beside: list[int]) -> None:
        body: dict[str, Any] = {"model": "m", "messages": [json.loads(each) for each in messages]}
        if beside:
            documents = [{"id": str(i), "text": text_of(i)} for i in beside]
            body["ragboost"] = {"documents": documents}
        session = client.name if self.world.is_named else ""
        if self.world.has_marks:
            body["messages"] = [*body["messages"]]
            for at in {len(messages) - 1, self.rng.randrange(len(messages))}:
                body["messages"][at] = marked(body["messages"][at])
        sent = self.proxy.send(body, session=session, key=client.key)
        assert [MARK in each for each in sent] == [MARK in str(m) for m in body["messages"]]
        sent = [unmarked(each) for each in sent]
        roles = [each["role"] for each in body["messages"]]
        question = len(roles) - 1 - roles[::-1].index("user")
        earlier = self._earlier(client, messages)
        given = dict(earlier.given) if earlier is not None else {}
        if beside:
            given[question] = tuple(beside)
        asked = Asked(client, tuple(messages), tuple(sent), question, tuple(beside), given)
        self._check_documents(asked)
        if earlier is not None:
            self._compare(asked, earlier)
        client.asked.append(asked)
        for end in range(1, len(messages) + 1):
            self.asked.setdefault(asked.messages[:end], []).append(asked)

    def _earlier(self, client: Client, messages: list[str]) -> Asked | None:
        """Return the client's last request with the longest part of these messages."""
        found = None
        for asked in client.asked:
            num = len(asked.messages)
            if tuple(messages[:num]) == asked.messages and (
                found is None or num >= len(found.messages)
            ):
                found = asked
        return found

    def _compare(self, asked: Asked, earlier: Asked) -> None:
        self.counts["compared"] += 1
        forms = self.asked[earlier.messages]
        own = [each for each in forms if any(each is known for known in asked.client.asked)]
        resent = list(self._resent(asked, earlier))
        if any(all(asked.sent[at] == each.sent[at] for at in resent) for each in own):
            return
        is_other = any(
            self._is_near(each.client, asked.client) for each in forms if each not in own
        )
        self.counts["undecidable" if is_other else "changed"] += 1

    def _resent(self, asked: Asked, earlier: Asked) -> Iterator[int]:
        """Yield the messages of an earlier request that the proxy must send again as they were."""
        for at in range(len(earlier.messages)):
            given = earlier.given.get(at, ())
            if not self.world.is_named and at in (earlier.question, asked.question):
                given = earlier.beside if at == earlier.question else ()
                if given != (asked.beside if at == asked.question else ()):
                    return  # documents beside it were part of the question
            if not set(given) <= set(asked.beside):
                return  # its documents are given no more, and what follows may refer to them
            is_question = at == asked.question and asked.beside
            if not is_question or given == asked.beside:
                yield at

    def _is_near(self, one: Client, other: Client) -> bool:
        return one.name == other.name if self.world.is_named else one.key == other.key

    def _check_documents(self, asked: Asked) -> None:
        sent, written = "".join(asked.sent), "".join(asked.messages)
        expected = {*numbers(written), *map(str, asked.beside)}
        assert expected <= numbers(sent), "a document is lost"
        assert self.world.is_named or numbers(sent) == expected, "a document is another one's"


def numbers(text: str) -> set[str]:
    return {piece.split("#")[0] for piece in text.split("DOC#")[1:]}


WORLDS = {
    "alone": World(1, 8, 0.5),
    "alone, no document twice": World(1, 0, 0.5),
    "two": World(2, 8, 0.5),
    "two, no document twice": World(2, 0, 0.5),
    "five": World(5, 8, 0.5),
    "five, with a name each": World(5, 8, 0.5, is_named=True),
    "three among many": World(3, 8, 0.8, num_others=70),
    "alone, with breakpoints": World(1, 8, 0.5, has_marks=True),
    "five with breakpoints and a name each": World(5, 8, 0.5, is_named=True, has_marks=True),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_what_was_sent_is_sent_again(world: World) -> None:
    num_moves = 60 if world.num_others else 200
    counts: Counter[str] = Counter()
    for seed in range(3):
        counts += Game(seed, world).play(num_moves)
    assert counts["compared"] > 2 * num_moves
    assert counts["changed"] == 0, counts
    assert counts["undecidable"] <= counts["compared"] // 50, counts


class Chat:
    """A client whose requests are written one by one."""

    def __init__(self, proxy: RewritingProxy, session: str = "") -> None:
        self._proxy = proxy
        self._session = session
        self.messages: list[dict[str, Any]] = []
        self.sent: list[str] = []

    def add(self, role: str, content: str, **fields: Any) -> None:
        self.messages.append({"role": role, "content": content, **fields})

    def send(self, *beside: int, **fields: Any) -> list[str]:
        """Send the messages, and return those that the engine gets; the ones that it had are
        compared."""
        body = {"model": "m", "messages": self.messages, **fields}
        if beside:
            documents = [{"id": str(i), "text": text_of(i)} for i in beside]
            body["ragboost"] = {"documents": documents}
        before, self.sent = self.sent, self._proxy.send(body, session=self._session)
        assert self.sent[: len(before)] == before
        return self.sent

    def ask(self, question: str, *beside: int, **fields: Any) -> list[str]:
        if self.messages and self.messages[-1]["role"] != "assistant":
            self.add("assistant", "ok")
        self.add("user", question)
        return self.send(*beside, **fields)


@pytest.mark.parametrize("session", ["", "name"])
def test_references_stay_when_documents_come_in_an_object_later(session: str) -> None:
    chat = Chat(RewritingProxy(), session)
    chat.ask(tags([2, 5]))
    assert tags([5]) not in chat.ask(tags([5, 0]))[-1]
    chat.ask("and?")
    chat.ask("more", 7, 3)
    if session:
        chat.ask("more", 7, 3, 2)


@pytest.mark.parametrize("session", ["", "name"])
def test_messages_with_documents_stay_in_a_turn_that_is_not_to_be_boosted(session: str) -> None:
    proxy = RewritingProxy()
    Chat(proxy).ask(tags([0, 5]))
    chat = Chat(proxy, session)
    given = tags([5, 0, 7])
    assert given not in chat.ask(given)[0]
    chat.ask("not this one", ragboost={"options": {"boost": False}})
    chat.ask("more")


def test_messages_that_were_not_boosted_stay_as_they_came_in_a_history_that_is_cut() -> None:
    proxy = RewritingProxy()
    Chat(proxy).ask(tags([0, 5]))
    chat = Chat(proxy)
    chat.messages += [
        {"role": "user", "content": tags([5, 0])},
        {"role": "assistant", "content": "ok"},
    ]
    chat.messages += [{"role": "user", "content": tags([0, 1])}]
    chat.ask("not this one", ragboost={"options": {"boost": False}})
    del chat.messages[3:], chat.sent[3:]
    chat.ask("another")


def test_a_second_question_before_the_answer_moves_nothing_back() -> None:
    proxy = RewritingProxy()
    Chat(proxy).ask(tags([0, 5]))
    chat, given = Chat(proxy), tags([5, 0, 7])
    assert given not in chat.ask(given)[0]
    chat.add("user", "Translate each document.")
    chat.send()
    chat.ask("more")
    other = Chat(proxy)
    other.messages.append({"role": "user", "content": given})
    assert json.loads(other.send(ragboost={"options": {"boost": False}})[0])["content"] == given


def test_results_of_tools_stay_whole_when_documents_beside_are_given_no_more() -> None:
    chat = Chat(RewritingProxy())
    chat.ask("Hello", 7)
    for result in (tags([2]), tags([2, 1])):
        chat.add("assistant", "", tool_calls=[{"id": "1", "type": "function"}])
        chat.add("tool", result, tool_call_id="1")
        chat.send(7)
    del chat.sent[0]  # has the document that is given no more
    results, chat.sent = chat.sent, []
    assert chat.ask("more")[1:5] == results


def test_a_reference_to_changed_instructions_is_not_sent_again() -> None:
    chat = Chat(RewritingProxy())
    assert text_of(5) not in chat.ask(tags([5, 0]), system=tags([2, 5]))[0]
    chat.sent = []
    assert text_of(5) in chat.ask("more", 7, system="Be brief.")[0]
