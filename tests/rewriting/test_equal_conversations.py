"""A game of clients who say the same words with the same few documents, under one key.

Knows what the engine got from each client. A history in another form must have an excuse: another
client asked the same last question, with documents that the request's list begins or ends with.
Nothing tells these apart but the responses, which the proxy does not keep. A request without
documents gets its messages as they are.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.rewriting.rewriting_proxy import RewritingProxy

QUESTIONS, ANSWERS = ("why?", "and then?"), ("Yes.", "I do not know.")
TEXTS = [f"Document {i}." for i in range(4)]
CLIENTS, TURNS = 8, 6


@dataclass(eq=False)
class Client:
    """A client that sends all its documents again, but for plain requests without any."""

    adds_to_front: bool
    documents: list[str] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    forms: list[set[str]] = field(default_factory=list)  # in which each message was sent


@pytest.mark.parametrize("plain_share", [0.0, 0.3])
def test_a_history_is_sent_as_its_clients_own_or_nothing_tells_it_from_anothers(
    plain_share: float,
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        counts += play(random.Random(seed), plain_share)
    assert counts["resent"] > 2000
    assert counts["without excuse"] <= counts["resent"] // 500, counts


def play(rng: random.Random, plain_share: float) -> Counter[str]:
    proxy, counts = RewritingProxy(), Counter[str]()
    clients: list[Client] = []
    asked: list[tuple[Client, list[Any], list[str]]] = []
    for _ in range(500):
        if len(clients) < CLIENTS:
            clients.append(Client(rng.random() < 0.5))
        client = rng.choice(clients)
        given = [] if rng.random() < plain_share else with_new(rng, client)
        messages = [*client.messages, {"role": "user", "content": rng.choice(QUESTIONS)}]
        body: dict[str, Any] = {"model": "m", "messages": messages}
        sent = proxy.send({**body, "ragboost": {"documents": given}} if given else body)
        check_documents(sent, given)
        counts["resent"] += bool(client.messages)
        if given and any(form not in own for form, own in zip(sent, client.forms, strict=False)):
            counts["in another form"] += 1
            counts["without excuse"] += not any(
                other is not client and question == messages[:-2] and could_be(documents, given)
                for other, question, documents in asked
            )
        asked.append((client, messages, given))
        answer = {"role": "assistant", "content": rng.choice(ANSWERS)}
        client.messages = [*messages, answer]
        sent.append(json.dumps(answer))
        client.forms += [set() for _ in sent[len(client.forms) :]]
        for form, own in zip(sent, client.forms, strict=True):
            own.add(form)
        if len(client.messages) == 2 * TURNS or rng.random() < 0.08:
            clients.remove(client)
    return counts


def with_new(rng: random.Random, client: Client) -> list[str]:
    new = [text for text in rng.sample(TEXTS, rng.randint(0, 2)) if text not in client.documents]
    old = client.documents
    client.documents = new + old if client.adds_to_front else old + new
    return client.documents


def could_be(documents: list[str], given: list[str]) -> bool:
    num = len(documents)
    return given[:num] == documents or given[len(given) - num :] == documents


def check_documents(sent: list[str], given: list[str]) -> None:
    whole = "".join(sent)
    for text in TEXTS:
        assert (text in whole) == (text in given), "no document is lost, and none is another one's"
