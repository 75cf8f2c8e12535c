"""Compare what the backend received with what the client wrote.

Shares no code with the proxy. The rules are the invariants of docs/architecture.md.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.fuzz.backend import encode_answer
from tests.fuzz.corpus import MARKER
from tests.fuzz.payload import Payload
from tests.fuzz.references import dead_references, with_tool_results
from tests.fuzz.requests import Asked, Reply
from tests.fuzz.shapes import CHAT
from tests.fuzz.worlds import World

KINDS = (
    "lost",
    "doubled",
    "foreign",
    "dead",
    "not identical",
    "changed",
    "response",
    "crash",
)
"""Faults: a document is missing; it is there more often than given; it is another person's; a label
or hint names nothing; a resent history has other bytes; other parts of the request have changed;
the client received something else than the backend sent; the proxy failed."""


class Fault(NamedTuple):
    """A broken rule: one of `KINDS`, and what was seen."""

    kind: str
    detail: str


def check(asked: Asked, bodies: list[bytes], reply: Reply, world: World) -> list[Fault]:
    """Return the faults of one request."""
    if reply.status == 404 and asked.has_history and not world.is_ample:
        return []  # the session was evicted
    faults = list(_check_reply(asked, reply))
    for body in bodies:
        try:
            payload = Payload(body.decode())
        except ValueError as error:
            faults.append(Fault("changed", f"the body is no JSON: {error}"))
            continue
        faults.extend(_check_documents(asked, payload, world))
        faults.extend(Fault("dead", detail) for detail in dead_references(asked, payload))
        faults.extend(_check_history(asked, payload))
        faults.extend(_check_rest(asked, payload))
    return faults


def _check_reply(asked: Asked, reply: Reply) -> Iterator[Fault]:
    answer = asked.answer
    if reply.status != asked.status:
        yield Fault(
            "crash" if reply.status == 500 else "response",
            f"status {reply.status} for {asked.status}: {reply.body[:200]!r}",
        )
    elif reply.status == 200 and answer.kind == "ok":
        expected = encode_answer(asked.path, answer)
        if not reply.is_complete or reply.body != expected:
            yield Fault("response", f"{reply.body[-200:]!r} for {expected[-200:]!r}")


def _check_documents(asked: Asked, payload: Payload, world: World) -> Iterator[Fault]:
    family = asked.family
    for owner, number in {*MARKER.findall(payload.raw)}:
        if f"{owner}.{number}" not in family.given:
            yield Fault("foreign", f"@{owner}.{number}@ was never given here")
    whole = with_tool_results(payload) if world.has_passages else payload.whole
    for document in asked.held:
        if document.text and document.text not in whole:
            yield Fault("lost", f"{document.marker} {document.id!r}")
    yield from _check_doubled(asked, payload, world)


def _check_doubled(asked: Asked, payload: Payload, world: World) -> Iterator[Fault]:
    family = asked.family
    for text in {document.text for document in asked.held if document.text}:
        count = payload.whole.count(text)
        if count < 2:
            continue
        is_once = family.is_clean and world.is_ample and world.dedups
        limit = len(family.variants[text]) if is_once else family.times[text]
        written = Payload(asked.body).whole.count(text)
        if count > max(limit, written):
            yield Fault("doubled", f"{count} times, not {max(limit, written)}: {text[:60]!r}")


def _check_history(asked: Asked, payload: Payload) -> Iterator[Fault]:
    old = asked.sent
    for at, (now, before) in enumerate(zip(payload.messages, old, strict=False)):
        mine = asked.messages[at] if at < len(asked.messages) else ""
        is_of_a_branch = asked.family.is_named and now in asked.family.sent.get(mine, ())
        is_answer = asked.has_history and _is_answer(now, before)
        if now != before and not (is_of_a_branch or is_answer):
            yield Fault("not identical", f"message {at}: {_difference(before, now)}")
            return
    if len(payload.messages) < len(old):
        yield Fault("not identical", f"{len(payload.messages)} messages of {len(old)}")
    if asked.has_history or asked.shape.is_inside or set(asked.held) != set(asked.given):
        return  # documents inside messages may be moved, and replaced by references
    if len(payload.messages) != len(asked.messages):
        yield Fault("changed", f"{len(payload.messages)} messages of {len(asked.messages)}")
        return
    for at in range(asked.num_history):
        now, mine = payload.messages[at], asked.messages[at]
        is_foreign = any(f"{o}.{n}" not in asked.family.given for o, n in MARKER.findall(now))
        if now != mine and now not in asked.family.sent.get(mine, ()) and not is_foreign:
            yield Fault("changed", f"message {at} of the history: {_difference(mine, now)}")


def _is_answer(now: str, before: str) -> bool:
    """Compare answers by their content: the proxy has stored what the backend sent."""
    one, two = json.loads(now), json.loads(before)
    return bool(one["role"] == two["role"] == "assistant" and one["content"] == two["content"])


def _check_rest(asked: Asked, payload: Payload) -> Iterator[Fault]:
    for name, value in asked.extras.items():
        if payload.fields.get(name) != value.strip():
            yield Fault("changed", f"{name}: {payload.fields.get(name)} for {value}")
    if asked.shape.is_ours and "ragboost" in payload.fields:
        yield Fault("changed", "the ragboost object was forwarded")
    if not any(asked.question in text for text in payload.question_texts):
        yield Fault("changed", f"the question {asked.question!r} is gone")
    yield from _check_front(asked, payload)


def _check_front(asked: Asked, payload: Payload) -> Iterator[Fault]:
    """Check that the text before the first document is the client's."""
    if not asked.shape.is_inside or asked.path != CHAT or asked.has_history:
        return
    for mine, now in zip(asked.messages, payload.messages, strict=False):
        if now in asked.family.sent.get(mine, ()):
            continue  # as an earlier turn sent it
        found = MARKER.search(mine)
        if found is None:
            if mine != now:
                yield Fault("changed", f"before the documents: {_difference(mine, now)}")
            continue
        start = min(at for at in (mine.find("Entry @"), mine.find("The register of")) if at >= 0)
        lead = re.split(r'<|Document|\[|Source|file_path|{|"', mine[:start])
        if not now.replace(" ", "").startswith(lead[0].replace(" ", "")):
            yield Fault("changed", f"the text before the documents: {_difference(mine, now)}")
        return


def _difference(before: str, now: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
        min(len(before), len(now)),
    )
    return f"at {at}: {before[at : at + 120]!r} became {now[at : at + 120]!r}"
