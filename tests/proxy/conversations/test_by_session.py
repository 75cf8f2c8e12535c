"""Conversations through the proxy: nothing lost, doubled or mixed, and prefixes that only grow."""

import re
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.booster.session_state import SessionState
from ragboost.config.memory import PROCESS_BYTES
from ragboost.requests.rewriter import Rewriting
from tests.fakes import FakeEngine, Received
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.proxy.conversations.chats import (
    HINT,
    URL,
    Chat,
    check_extends,
    check_hints_point_into_the_payload,
    contents,
    document,
    text_of,
)


def test_a_later_turn_extends_the_earlier_one_and_refers_to_its_documents(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "basic", messages=[{"role": "system", "content": "Be brief."}])
    first = chat.ask("one?", [document(1), document(2)])
    second = chat.ask("two?", [document(2), document(3)])
    third = chat.ask("three?")
    check_extends(second, first)
    check_extends(third, second)
    assert "Please refer to [Doc_2] in the previous conversation" in contents(second)[-1]
    assert text_of(2) not in contents(second)[-1]
    assert text_of(3) in contents(second)[-1]
    assert contents(third)[-1] == "three?"
    assert second.cached_tokens >= first.prompt_tokens - 16 - 3  # one block, the answer's role


def test_the_session_may_be_named_in_the_header(client: httpx.Client, engine: FakeEngine) -> None:
    headers = {"x-ragboost-session": "by-header"}
    question = {"role": "user", "content": "one?"}
    ours = {"documents": [document(1)]}
    client.post(URL, json={"messages": [question], "ragboost": ours}, headers=headers)
    first = engine.requests[-1]
    history = [question, {"role": "assistant", "content": "so"}, {"role": "user", "content": "2?"}]
    client.post(URL, json={"messages": history}, headers=headers)
    check_extends(engine.requests[-1], first)


def test_a_large_request_is_rewritten_in_a_worker_thread_and_remembered(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    boost = Rewriting.boost

    def noting(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return boost(*arguments, **named)

    monkeypatch.setattr(Rewriting, "boost", noting)
    chat = Chat(client, engine, "large")
    first = chat.ask("one?", [{"id": 1, "text": "large " * 60_000}])
    second = chat.ask("two?", [{"id": 1, "text": "large " * 60_000}, document(2)])
    third = chat.ask("three?", [document(2)])
    check_extends(second, first)
    check_extends(third, second)
    assert HINT.findall(contents(second)[-1]) == ["[Doc_1]"]
    assert threads[2] not in threads[:2]  # the last one is small and stays on the event loop


def test_without_a_session_nothing_is_remembered(client: httpx.Client, engine: FakeEngine) -> None:
    for _ in range(2):
        body = {"messages": [{"role": "user", "content": "why?"}]}
        client.post(URL, json={**body, "ragboost": {"documents": [document(1)]}})
        assert text_of(1) in contents(engine.requests[-1])[0]
        client.post(URL, json=body)
        assert contents(engine.requests[-1]) == ["why?"]


def test_an_edited_history_starts_over_without_loss(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "edited")
    chat.ask("one?", [document(1), document(2)])
    chat.messages[0] = {"role": "user", "content": "one, really?"}
    received = chat.ask("two?", [document(2), document(1)])
    assert not HINT.search(received.body.decode())
    assert all(text_of(i) in contents(received)[-1] for i in (1, 2))


def test_a_retry_sends_the_same_bytes(client: httpx.Client, engine: FakeEngine) -> None:
    chat = Chat(client, engine, "retry")
    chat.ask("one?", [document(1), document(2)])
    chat.messages.append({"role": "user", "content": "two?"})
    first = chat.send([document(2), document(3)])
    second = chat.send([document(2), document(3)])
    assert first.body == second.body


def test_another_answer_to_the_same_question_keeps_the_turns_before_it(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "fork")
    first = chat.ask("one?", [document(1)])
    history = chat.messages
    chat.ask("two?", [document(2)])
    chat.messages = history
    received = chat.ask("two, differently?", [document(2), document(1)])
    check_extends(received, first)
    assert text_of(2) in contents(received)[-1]
    assert HINT.findall(contents(received)[-1]) == ["[Doc_1]"]


def test_a_branch_goes_on_after_another_one_with_the_same_question_and_other_documents(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "same question")
    chat.ask("one?", [document(1), document(2)])
    second = chat.ask("two?", [document(2), document(3)])
    other = Chat(client, engine, "same question")
    other_first = other.ask("one?", [document(4), document(2)])
    third = chat.ask("three?", [document(3), document(5)])
    check_extends(third, second)
    check_hints_point_into_the_payload(third)
    check_extends(other.ask("other two?", [document(6)]), other_first)
    check_extends(chat.ask("four?"), third)


def test_a_message_without_documents_stays_so_after_a_branch_that_gave_it_some(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "documents later")
    chat.ask("one?", [document(1)])
    other = chat.fork()
    chat.ask("two?")
    third = chat.ask("three?", [document(2)])
    other.ask("two?", [document(3)])
    check_extends(chat.ask("four?", [document(3)]), third)


@pytest.mark.parametrize("documents", [None, []])
def test_a_question_asked_again_without_documents_gets_none(
    client: httpx.Client, engine: FakeEngine, documents: list[Any] | None
) -> None:
    chat = Chat(client, engine, f"no documents {documents}")
    first = chat.ask("one?", [document(1)])
    chat.ask("two?", [document(2)])
    chat.messages = chat.messages[:2]
    again = chat.ask("two?", documents)
    check_extends(again, first)
    assert contents(again)[-1] == "two?"
    check_extends(chat.ask("three?"), again)


def test_a_history_continues_with_the_form_of_its_question_that_was_sent_last(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "with, without, with")
    for documents in ([document(1)], [], [document(1)]):
        chat.messages = []
        sent = chat.ask("one?", documents)
    check_extends(chat.ask("two?"), sent)
    assert text_of(1) in contents(sent)[0]


def test_an_equal_history_of_the_same_name_does_not_change_messages_sent_as_they_came(
    client: httpx.Client, engine: FakeEngine
) -> None:
    one, two = (Chat(client, engine, "one name for all") for _ in range(2))
    one.ask("hi")
    first = one.ask("what else?")
    two.ask("hi", [document(1), document(2)])
    second = one.ask("and then?")
    check_extends(second, first)
    two.ask("more?", [document(3)])
    check_extends(one.ask("again?"), second)
    assert not any(text_of(n) in str(contents(engine.requests[-1])) for n in (1, 2, 3))


def test_an_agents_next_step_keeps_the_turns_message(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "agent")
    chat.messages = [{"role": "user", "content": "do it"}]
    first = chat.send([document(1)])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat.messages = [
        *chat.messages,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "result"},
    ]
    for documents in (None, [document(1)]):
        received = chat.send(documents)
        check_extends(received, first)
        assert "".join(str(text) for text in contents(received)).count(text_of(1)) == 1


def test_single_questions_evict_no_conversation_with_a_name(engine: FakeEngine) -> None:
    least = {"memory_bytes": PROCESS_BYTES + (64 << 10)}  # 8 KiB of conversations without a name
    with (
        ProxyServer(proxy_settings(engine.url, proxy=least)) as proxy,
        httpx.Client(base_url=proxy.url) as client,
    ):
        chat = Chat(client, engine, "kept")
        first = chat.ask("one?", [document(1), document(2)])
        for number in range(40):
            Chat(client, engine).ask(f"question {number}?", [document(number)])
        check_extends(chat.ask("two?"), first)


def test_users_with_the_same_session_id_do_not_meet(
    client: httpx.Client, engine: FakeEngine
) -> None:
    Chat(client, engine, "shared", user="alice").ask("hello", [document(1)])
    received = Chat(client, engine, "shared", user="bob").ask("hello")
    assert contents(received) == ["hello"]


def test_models_and_cache_salts_do_not_meet(client: httpx.Client, engine: FakeEngine) -> None:
    Chat(client, engine, "salted").ask("hello", [document(1)], cache_salt="a")
    for fields in ({}, {"cache_salt": "b"}, {"cache_salt": "a", "model": "other"}):
        assert contents(Chat(client, engine, "salted").ask("hello", **fields)) == ["hello"]


@pytest.mark.parametrize("field", ["user", "safety_identifier"])
def test_end_users_with_the_same_session_id_do_not_meet(
    client: httpx.Client, engine: FakeEngine, field: str
) -> None:
    """An application numbers the chats of each of its users."""
    Chat(client, engine, f"1 {field}").ask("hello", [document(1)], **{field: "alice"})
    received = Chat(client, engine, f"1 {field}").ask("hello", **{field: "bob"})
    assert contents(received) == ["hello"]


def test_the_same_documents_field_keeps_its_order_and_hints_in_a_conversation(
    client: httpx.Client, engine: FakeEngine
) -> None:
    documents = [{"title": f"T{i}", "text": text_of(i) * 5} for i in (50, 51, 52)]
    seed = Chat(client, engine, "seed", messages=[{"role": "user", "content": "x?"}])
    _with_field(seed, {"documents": documents[::-1]})
    chat = Chat(client, engine, "field", messages=[{"role": "user", "content": "one?"}])
    body = {"documents": documents}
    first = _with_field(chat, body)
    chat.messages = [
        *chat.messages,
        {"role": "assistant", "content": chat.answer},
        {"role": "user", "content": "two?"},
    ]
    second = _with_field(chat, body)
    assert first.json["documents"] == second.json["documents"] == documents[::-1]
    check_extends(second, first)
    assert '"T50" >> "T51" >> "T52"' in contents(second)[-1]


def test_a_turn_with_the_documents_field_resends_turns_of_the_ragboost_object(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "mixed")
    first = chat.ask("one?", [document(1)])
    chat.messages = [*chat.messages, {"role": "user", "content": "two?"}]
    second = _with_field(chat, {"documents": [text_of(2)]})
    assert second.json["messages"][:1] == first.json["messages"]


def _with_field(chat: Chat, fields: dict[str, Any]) -> Received:
    body = {"model": "m", "messages": chat.messages, "ragboost": {"session_id": chat.session}}
    headers = {"authorization": f"Bearer {chat.user}"}
    response = chat.client.post(URL, json={**body, **fields}, headers=headers)
    chat.answer = response.json()["choices"][0]["message"]["content"]
    return chat.engine.requests[-1]


def _labels(received: Received) -> list[str]:
    return re.findall(r"^\[Doc_[^\]]+\]$", "\n".join(contents(received)), re.MULTILINE)


def test_a_later_turn_refers_to_documents_that_were_sent_unboosted(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "unboosted first")
    first = chat.ask("one?", [document(1), document(2)], boost=False)
    second = chat.ask("two?", [document(2), document(3)])
    check_extends(second, first)
    check_hints_point_into_the_payload(second)
    assert HINT.findall(contents(second)[-1]) == ["[Doc_2]"]
    assert _labels(second) == ["[Doc_1]", "[Doc_2]", "[Doc_3]"]


def test_no_two_documents_have_one_label_after_an_unboosted_turn(
    client: httpx.Client, engine: FakeEngine
) -> None:
    chat = Chat(client, engine, "unboosted labels")
    chat.ask("one?", [document(1)])
    other, third = {"id": 1, "text": "another text"}, {"id": 1, "text": "a third text"}
    chat.ask("two?", [other], boost=False)
    last = chat.ask("three?", [third, other])
    check_hints_point_into_the_payload(last)
    labels = _labels(last)
    assert (len(labels), len(set(labels))) == (3, 3)
    label = HINT.findall(contents(last)[-1])
    assert f"{label[0]}\nanother text" in contents(last)[2]


def test_the_same_question_asked_again_unboosted_is_not_boosted(
    client: httpx.Client, engine: FakeEngine
) -> None:
    documents = [document(i) for i in (80, 81, 82)]
    Chat(client, engine, user="again").ask("x", documents[::-1])
    for session in ("again", None):
        chat = Chat(client, engine, session, user="again")
        chat.messages = [{"role": "user", "content": "one?"}]
        boosted = chat.send(documents)
        assert _labels(boosted) == ["[Doc_82]", "[Doc_81]", "[Doc_80]"]
        given = chat.send(documents, boost=False)
        assert chat.response is not None
        assert chat.response.headers["x-ragboost-bypass"] == "option"
        assert _labels(given) == ["[Doc_80]", "[Doc_81]", "[Doc_82]"]
        assert chat.send(documents).body == boosted.body


def test_an_unboosted_documents_field_keeps_its_order(
    client: httpx.Client, engine: FakeEngine
) -> None:
    documents = [{"title": f"T{i}", "text": text_of(i)} for i in (70, 71, 72)]
    for session, order in (("a", documents[::-1]), ("b", documents)):
        chat = Chat(client, engine, session, messages=[{"role": "user", "content": "x?"}])
        _with_field(chat, {"documents": order})
    ours = {"options": {"boost": False}, "session_id": "b"}
    received = _with_field(chat, {"documents": documents, "ragboost": ours})
    assert received.json["documents"] == documents
    assert received.json["messages"] == chat.messages


ACTION = st.one_of(
    st.tuples(st.just("ask"), st.lists(st.integers(0, 9), max_size=5)),
    st.tuples(st.just("again"), st.lists(st.integers(0, 9), max_size=5)),
    st.tuples(st.just("edit"), st.lists(st.integers(0, 9), max_size=3)),
    st.tuples(st.just("truncate"), st.lists(st.integers(0, 9), max_size=3)),
)


class TestRandomConversations:
    """Two users with the same session id, the same questions and document ids, other texts."""

    runs = 0

    @settings(max_examples=40, deadline=None)
    @given(actions=st.lists(st.tuples(st.sampled_from(["alice", "bob"]), ACTION), max_size=12))
    def test_nothing_is_lost_doubled_or_mixed_and_prefixes_only_grow(
        self, client: httpx.Client, engine: FakeEngine, actions: list[Any]
    ) -> None:
        TestRandomConversations.runs += 1
        session = f"random-{TestRandomConversations.runs}"
        chats = {user: Chat(client, engine, session, user=user) for user in ("alice", "bob")}
        last: dict[str, Received] = {}
        for user, (action, ids) in actions:
            chat = chats[user]
            texts = {i: f"{user} wrote: {text_of(i)}" for i in ids}
            documents = [{"id": i, "text": texts[i]} for i in ids]
            if action == "again" and chat.messages:
                chat.messages = chat.messages[:-2]
                last.pop(user, None)
            elif action == "edit" and chat.messages:
                chat.messages[0] = {"role": "user", "content": f"edited {len(chat.messages)}"}
                last.pop(user, None)
            elif action == "truncate":
                chat.messages = chat.messages[2:]
                last.pop(user, None)
            received = chat.ask(f"question {len(chat.messages)}", documents)
            self.check(received, texts, others="bob" if user == "alice" else "alice")
            if user in last:
                check_extends(received, last[user])
            last[user] = received

    @staticmethod
    def check(received: Received, texts: dict[int, str], *, others: str) -> None:
        check_hints_point_into_the_payload(received)
        everything = "".join(contents(received))
        assert f"{others} wrote" not in everything
        assert b"ragboost" not in received.body
        for text in texts.values():
            assert everything.count(text) == 1
        question = contents(received)[-1]
        num_referred = sum(text not in question for text in texts.values())
        is_all = "Please refer to all documents in" in question
        assert len(HINT.findall(question)) == (0 if is_all else num_referred)
        assert not is_all or num_referred > 3


def test_a_hint_names_a_document_as_this_branch_labelled_it(
    proxy: ProxyServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Labels of earlier turns are forgotten.
    monkeypatch.setitem(SessionState.add.__kwdefaults__, "max_documents", 2)
    same_id = {"id": 5, "text": "Another text."}
    with httpx.Client(base_url=proxy.url) as client:
        chat = Chat(client, engine, "branches")
        chat.ask("one?", [document(1), document(2)])
        chat.ask("two?", [document(3), document(4)])
        chat.ask("three?", [document(5), document(6)])
        for question, documents in (
            ("other?", [document(7), document(8)]),
            ("another?", [document(5), document(9)]),
            ("a third?", [same_id, document(9)]),
        ):
            Chat(client, engine, "branches").ask(question, documents)
        received = chat.ask("four?", [document(5), same_id])
    check_hints_point_into_the_payload(received)
    shown = "".join(contents(received))
    assert HINT.findall(contents(received)[-1]) == ["[Doc_5]"]
    assert shown.count("[Doc_5]\n") == 1
    assert "Another text." in contents(received)[-1]
