"""Conversations whose documents stand in the client's own messages, resent with every turn."""

import json
import random
import re
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventually import eventually
from tests.fakes import FakeEngine, Received
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.proxy.conversations.chats import Chat, check_extends, contents

REFERENCE = re.compile(r'the document that begins with "([^"]*)"')
USERS = ("alice", "bob")
ACTION = st.tuples(
    st.sampled_from(USERS),
    st.sampled_from(["ask", "ask", "ask", "edit", "truncate"]),
    st.lists(st.integers(0, 5), max_size=4),
)


def text_of(user: str, i: int) -> str:
    return f"{user} keeps number {i} here. " + f"It tells of {i * i} at length. " * 8


def question(user: str, ids: list[int], number: int) -> str:
    blocks = "\n".join(f"<document>{text_of(user, i).strip()}</document>" for i in ids)
    return f"{blocks}\nquestion {number}?"


class TestRandomConversations:
    runs: ClassVar[int] = 0

    @settings(max_examples=25, deadline=None)
    @given(actions=st.lists(ACTION, max_size=10))
    def test_nothing_is_lost_or_mixed_and_prefixes_only_grow(
        self, client: httpx.Client, engine: FakeEngine, actions: list[Any]
    ) -> None:
        TestRandomConversations.runs += 1
        run = TestRandomConversations.runs
        chats = {user: Chat(client, engine, user=f"{user} {run}") for user in USERS}
        last: dict[str, Received] = {}
        choose = random.Random(repr(actions))
        for user, action, ids in actions:
            chat = chats[user]
            if action == "edit" and chat.messages:
                at = choose.randrange(len(chat.messages))
                edited = {**chat.messages[at], "content": f"edited {choose.random()}"}
                chat.messages = [*chat.messages[:at], edited, *chat.messages[at + 1 :]]
                last.pop(user, None)
            elif action == "truncate":
                chat.messages = chat.messages[2:]
                last.pop(user, None)
            received = chat.ask(question(user, ids, len(chat.messages)))
            self.check(received, chat.messages[:-1], user)
            if user in last:
                check_extends(received, last[user])
            last[user] = received

    @staticmethod
    def check(received: Received, given: list[dict[str, Any]], user: str) -> None:
        sent = contents(received)
        whole = "".join(sent)
        asked = "".join(message["content"] for message in given)
        for i in range(6):
            text = text_of(user, i).strip()
            assert (text in whole) == (text in asked), "every document stands there in full"
        for other in set(USERS) - {user}:
            assert f"{other} keeps" not in whole
        for at, content in enumerate(sent):
            for found in REFERENCE.finditer(content):
                before = "".join(sent[:at]) + content[: found.start()]
                assert found[1] in before, "every reference has its target before it"


@pytest.mark.parametrize(("sentences", "is_hinted"), [(20, False), (800, True)])
def test_a_resent_message_keeps_or_lacks_the_order_hint_as_it_was_sent(
    sentences: int, is_hinted: bool
) -> None:
    texts = [f"Number {i}. " + "It tells of that. " * sentences for i in range(2)]
    first, second = [f"<document>{text}</document>" for text in texts]
    reuse: dict[str, Any] = {"ragboost": {"reuse": {"ratio": 0.25}}}
    with (
        FakeEngine(chunk_reuse={"is_possible": True}) as engine,
        ProxyServer(proxy_settings(engine.url, ordering={"keep_last": 0})) as proxy,
        httpx.Client(base_url=proxy.url) as client,
    ):
        eventually(lambda: proxy.app.state.engines.is_supported)
        Chat(client, engine, user="a").ask(f"{first}\n{second}\nWhy?", **reuse)
        chat = Chat(client, engine, user="a")
        sent = chat.ask(f"{second}\n{first}\nAnd how?", **reuse)
        later = chat.ask("Go on.", **reuse)

    written = contents(sent)[0]
    assert written.index("Number 0.") < written.index("Number 1."), "the cached one is in front"
    assert ("by relevance" in written) == is_hinted
    check_extends(later, sent)


@pytest.mark.parametrize("session", [None, "named"])
def test_references_in_tool_results_stay_when_later_documents_come_in_another_shape(
    session: str | None,
) -> None:
    found = {"results": [{"text": text_of("alice", i)} for i in range(3)]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(found)}
    passages = {"passages": True}
    with (
        FakeEngine() as engine,
        ProxyServer(proxy_settings(engine.url, dedup=passages)) as proxy,
        httpx.Client(base_url=proxy.url) as client,
    ):
        chat = Chat(client, engine, session=session)
        chat.messages = [{"role": "user", "content": "hi"}, result]
        chat.ask("And again?")
        chat.messages += [result, result]
        sent = chat.ask("What do they say?")
        assert contents(sent)[4].count("Please refer to the document") == 3
        later = chat.ask("Who keeps them?", [{"text": text_of("bob", 1)}])

    check_extends(later, sent)
