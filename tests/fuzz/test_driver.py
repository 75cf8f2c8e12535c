"""Two thousand random requests through the whole application break no rule, and the oracle sees
every kind of broken rule."""

import json
import logging

import pytest

from tests.fuzz.backend import Answer
from tests.fuzz.corpus import Doc
from tests.fuzz.driver import Episode, Report
from tests.fuzz.oracle import check
from tests.fuzz.requests import Asked, Family, Reply
from tests.fuzz.shapes import OURS
from tests.fuzz.worlds import WORLDS

SEED = 2026
REQUESTS = 2_000
_SIZE = REQUESTS // len(WORLDS)


@pytest.mark.parametrize("number", range(len(WORLDS)), ids=[world.name for world in WORLDS])
def test_random_requests_break_no_rule(number: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ragboost")  # thousands of backends fail on purpose
    report = Report()
    Episode(SEED, number, _SIZE).run(report)
    assert report.requests == _SIZE
    assert not report.failures, f"python -m benchmarks.proxy.fuzz --replay {report.failures[0][0]}"


def test_an_episode_is_the_same_each_time() -> None:
    assert bodies_of(Episode(7, 0, 60)) == bodies_of(Episode(7, 0, 60))


def bodies_of(episode: Episode) -> list[str]:
    bodies: list[str] = []
    episode.run(Report(), see=lambda asked, _sent, _reply: bodies.append(asked.body))
    return bodies


DOCUMENTS = tuple(Doc("ann", i, f"d{i}", None, f"Entry @ann.{i}@ says: text {i}.") for i in (1, 2))
QUESTION = "Who signed the lease?"
EARLIER = '{"role":"user","content":"hi"}'
SAID = '{"role":"assistant","content":"Hello!"}'


def asked() -> Asked:
    family = Family()
    family.give(DOCUMENTS)
    ours = {"documents": [{"id": d.id, "text": d.text} for d in DOCUMENTS]}
    question = json.dumps({"role": "user", "content": QUESTION})
    messages = (EARLIER, SAID, question)
    body = f'{{"messages": [{", ".join(messages)}], "n": 1e2, "ragboost": {json.dumps(ours)}}}'
    return Asked(
        number=1,
        move="on",
        path="/v1/chat/completions",
        headers=(),
        body=body,
        family=family,
        shape=OURS,
        given=DOCUMENTS,
        held=DOCUMENTS,
        question=QUESTION,
        messages=messages,
        num_history=2,
        sent=(EARLIER, SAID),
        extras={"n": "1e2"},
        is_boosted=True,
        status=500,
        answer=Answer("", "error"),
    )


def payload(text: str, *, earlier: str = EARLIER, extra: str = "1e2") -> bytes:
    question = json.dumps({"role": "user", "content": text})
    return f'{{"messages":[{earlier},{SAID},{question}],"n":{extra}}}'.encode()


BLOCKS = [f"[Doc_{d.id}]\n{d.text}\n\n" for d in DOCUMENTS]
HINT = "Documents by relevance, most relevant first: {}\n\n"
FINE = "".join(BLOCKS) + QUESTION
SWAPPED = BLOCKS[1] + BLOCKS[0]
GONE = "Please refer to [Doc_d2] in the previous conversation.\n\n"

CASES: list[tuple[str, bytes]] = [
    ("", payload(FINE)),
    ("", payload(SWAPPED + HINT.format("[Doc_d1] >> [Doc_d2]") + QUESTION)),
    ("lost", payload(BLOCKS[0] + QUESTION)),
    ("doubled", payload(BLOCKS[0] + FINE)),
    ("foreign", payload("Entry @bob.1@ says.\n\n" + FINE)),
    ("dead", payload(SWAPPED + HINT.format("[Doc_d2] >> [Doc_d1]") + QUESTION)),
    ("dead", payload(SWAPPED + HINT.format("[Doc_d1] >> [Doc_d3]") + QUESTION)),
    ("dead", payload(BLOCKS[0] + GONE + QUESTION)),
    ("dead", payload(FINE.replace("Doc_d2", "Doc_d1"))),
    ("not identical", payload(FINE, earlier='{"role": "user","content":"hi"}')),
    ("changed", payload("".join(BLOCKS) + "Who?")),
    ("changed", payload(FINE, extra="100.0")),
    ("changed", b"{"),
]


@pytest.mark.parametrize(("kind", "body"), CASES)
def test_the_oracle_sees_a_broken_rule(kind: str, body: bytes) -> None:
    kinds = {fault.kind for fault in check(asked(), [body], Reply(500, b"", True), WORLDS[0])}
    assert kind in kinds if kind else not kinds


def test_the_oracle_sees_a_response_that_was_changed() -> None:
    for status, kind in ((200, "response"), (502, "response")):
        faults = check(asked(), [payload(FINE)], Reply(status, b"", True), WORLDS[0])
        assert [fault.kind for fault in faults] == [kind]
