"""`ordering.move_varying`: what differs before the documents moves behind them, for good."""

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeEngine, Received
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.proxy.conversations.chats import Chat, check_extends, contents

NUMBERS = count()
RULES = "You answer questions of students. Be brief.\n"
USERS = ("alice", "bob")
ACTION = st.tuples(
    st.sampled_from(USERS),
    st.sampled_from(["ask", "ask", "ask", "restart", "edit"]),
    st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True),
)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[httpx.Client]:
    settings = proxy_settings(engine.url, ordering={"move_varying": True}, proxy={"receipts": True})
    with ProxyServer(settings) as proxy, httpx.Client(base_url=proxy.url) as client:
        yield client


def documents(ids: list[int]) -> str:
    return "\n".join(f"<document>Text {i} tells of {i * i} at length.</document>" for i in ids)


def piece(user: str) -> str:
    return f"The user is {user}, request {next(NUMBERS)}.\n"


def question(user: str, ids: list[int]) -> str:
    return f"{RULES}{piece(user)}\nDocuments:\n{documents(ids)}\nWhy?"


def learn(client: httpx.Client, engine: FakeEngine) -> None:
    for _ in range(24):
        Chat(client, engine, user="carol").ask(question("carol", [0, 1]))


def test_the_piece_stands_behind_the_documents(client: httpx.Client, engine: FakeEngine) -> None:
    learn(client, engine)
    chat = Chat(client, engine, user="carol")

    sent = contents(chat.ask(question("carol", [2, 3])))[0]

    assert sent.startswith(f"{RULES}Documents:\n<document>Text ")
    assert sent.index("The user is carol") > sent.rindex("</document>")
    assert sent.count("The user is carol") == 1
    assert sent.endswith("\nWhy?")
    assert chat.response is not None
    assert "advice" not in json.loads(chat.response.headers["x-ragboost-receipt"])


def test_what_is_moved_is_no_advice_of_the_dashboard(
    client: httpx.Client, engine: FakeEngine
) -> None:
    learn(client, engine)

    assert client.get("/dashboard/data").json()["varying"] == []


def test_a_request_whose_piece_is_moved_keeps_its_arm(engine: FakeEngine) -> None:
    settings = proxy_settings(
        engine.url, ordering={"move_varying": True}, boost={"share": 0.5}, hints={"order": False}
    )
    with ProxyServer(settings) as proxy, httpx.Client(base_url=proxy.url) as client:
        for _ in range(60):
            chat, content = Chat(client, engine, user="dora"), question("dora", [0, 1])
            [sent] = contents(chat.ask(content))
            assert chat.response is not None
            is_held_out = chat.response.headers.get("x-ragboost-bypass") == "held_out"
            assert not is_held_out or sent == content, "nothing is moved of what is held out"


def test_a_client_that_wants_its_documents_as_they_are_gets_them(
    client: httpx.Client, engine: FakeEngine
) -> None:
    learn(client, engine)
    content = question("carol", [2, 3])

    received = Chat(client, engine, user="carol").ask(content, boost=False)

    assert contents(received) == [content]


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("boosts", [(True, True), (True, False), (False, True)])
def test_a_history_stays_as_it_was_sent_before_and_after_the_piece_is_known(
    engine: FakeEngine, session: str | None, boosts: tuple[bool, bool]
) -> None:
    settings = proxy_settings(engine.url, ordering={"move_varying": True})
    with ProxyServer(settings) as proxy, httpx.Client(base_url=proxy.url) as client:
        for name in ("early", "late"):
            chat = Chat(client, engine, session=session and f"{session} {name}", user=name)
            first = chat.ask(question(name, [0, 1]), boost=boosts[0])
            learn(client, engine)  # late, it is known before the first turn
            second = chat.ask(question(name, [2, 3]), boost=boosts[1])
            third = chat.ask("And then?", boost=boosts[0])
            check_extends(second, first)
            check_extends(third, second)


class TestRandomConversations:
    @settings(max_examples=25, deadline=None)
    @given(actions=st.lists(ACTION, max_size=12))
    def test_nothing_is_lost_or_doubled_and_prefixes_only_grow(
        self, client: httpx.Client, engine: FakeEngine, actions: list[Any]
    ) -> None:
        run = next(NUMBERS)
        chats = {user: Chat(client, engine, user=f"{user} {run}") for user in USERS}
        last: dict[str, Received] = {}
        choose = random.Random(repr(actions))
        for user, action, ids in actions:
            chat = chats[user]
            if action == "restart" or (action == "edit" and not chat.messages):
                chat.messages = []
                last.pop(user, None)
            elif action == "edit":
                at = choose.randrange(0, len(chat.messages), 2)
                edited = {**chat.messages[at], "content": question(user, ids)}
                chat.messages = [*chat.messages[:at], edited, *chat.messages[at + 1 :]]
                last.pop(user, None)
            received = chat.ask(question(user, ids))
            self.check(contents(received), [m["content"] for m in chat.messages[:-1]], user)
            if user in last:
                check_extends(received, last[user])
            last[user] = received

    @staticmethod
    def check(sent: list[str], given: list[str], user: str) -> None:
        assert len(sent) == len(given)
        for new, old in zip(sent, given, strict=True):
            for line in old.splitlines():
                if not line.startswith("<document>"):  # those may be references
                    assert new.count(line) >= 1, (line, new)
            assert new.count("The user is") == old.count("The user is")
        for other in set(USERS) - {user}:
            assert f"The user is {other}" not in "".join(sent)
