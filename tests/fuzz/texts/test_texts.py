"""Random texts break no rule, and the oracle for texts sees every kind of broken rule."""

import json
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz.backend import Answer, Backend
from tests.fuzz.corpus import Doc
from tests.fuzz.driver import Report, in_process
from tests.fuzz.payload import Payload
from tests.fuzz.texts.applications import ANSWER, Application
from tests.fuzz.texts.driver import TENANTS, TEXT_WORLDS, TextEpisode
from tests.fuzz.texts.layouts import LAYOUTS, Layout
from tests.fuzz.texts.oracle import Reader, Text

SEED = 2026
SIZE = 500


@pytest.mark.parametrize("number", range(len(TEXT_WORLDS)))
def test_random_texts_break_no_rule(number: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ragboost")
    report = Report()
    TextEpisode(SEED, number, SIZE).run(report)
    assert report.requests == SIZE
    assert not report.failures, f"python -m benchmarks.proxy.fuzz --replay {report.failures[0][0]}"


def test_an_episode_is_the_same_each_time() -> None:
    assert bodies_of(TextEpisode(7, 0, 60)) == bodies_of(TextEpisode(7, 0, 60))


def bodies_of(episode: TextEpisode) -> list[str]:
    bodies: list[str] = []
    episode.run(Report(), see=lambda request, _body, _reply: bodies.append(request.body))
    return bodies


LEASE = Doc("ann", 1, "lease.md", "Lease", "Maria signed the lease, and it runs for two years.")
RENT = Doc("ann", 2, "rent.md", "Rent", "The rent is due on the first.\n\nAnswer: by transfer.")
PETS = Doc("ann", 3, "pets.md", "Pets", "[2] Pets are allowed with permission </doc> only.\n")
BY_NAME = {layout.name: layout for layout in LAYOUTS}
HEAD, TAIL = "Answer, and cite as [n].\n\n", "\n\nQuestion: who?"


def text(name: str, *documents: Doc) -> Text:
    return Text(HEAD, TAIL, BY_NAME[name], documents or (LEASE, RENT, PETS))


def faults(written: Text, received: str, *, earlier: tuple[str, ...] = ()) -> set[str]:
    reader = Reader(True, list(earlier))
    return {fault.kind for fault in reader.check(written, received)}


def listed(layout: Layout, *documents: Doc) -> str:
    return f"{HEAD}{layout.write(documents)}{TAIL}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.name for layout in LAYOUTS])
def test_whole_documents_in_another_order_are_right(layout: Layout) -> None:
    written = Text(HEAD, TAIL, layout, (LEASE, RENT, PETS))
    assert faults(written, written.written) == set()
    assert faults(written, listed(layout, PETS, LEASE, RENT)) == set()


@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.name for layout in LAYOUTS])
def test_a_document_that_is_cut_or_lost_is_seen(layout: Layout) -> None:
    written = Text(HEAD, TAIL, layout, (LEASE, RENT, PETS))
    moved = written.written.replace("Answer: by transfer.", "", 1) + "\nAnswer: by transfer."
    assert faults(written, moved) == {"cut"}
    assert faults(written, listed(layout, LEASE, PETS)) == {"cut"}


def test_a_hint_behind_the_documents_is_right_and_one_inside_is_not() -> None:
    hint = "\n\nDocuments by relevance, most relevant first: document 2 >> document 1"
    written = text("<doc>")
    right = written.written.replace(TAIL, hint + TAIL)
    assert faults(written, right) == set()
    assert faults(
        written, written.written.replace("</doc>\n<doc>The", f"</doc>{hint}\n<doc>The")
    ) == {"note"}
    assert "cut" in faults(written, written.written.replace("due on", f"due{hint} on"))


def test_a_reference_stands_for_a_whole_document_that_is_there() -> None:
    written = text("<document>")
    reference = (
        'Please refer to the document that begins with "The rent is due" in the previous '
        "conversation."
    )
    received = written.written.replace(RENT.text, reference)
    assert faults(written, received, earlier=(RENT.text,)) == set()
    assert faults(written, received) == {"cut"}
    part = written.written.replace("Answer: by transfer.", reference)
    assert faults(written, part, earlier=(RENT.text,)) == {"cut"}


def test_numbers_stay_at_their_places_and_answers_cite_the_clients() -> None:
    written = text("Document 1:", LEASE, RENT)
    moved = listed(BY_NAME["Document 1:"], RENT, LEASE)
    assert faults(written, moved.replace("ent 1:", "ent B:")) == {"citation"}
    reader = Reader(True)
    assert not list(reader.check(written, moved))
    assert not list(reader.check(Text("So [2], [3].", is_answer=True), "So [1], [3]."))
    assert {f.kind for f in reader.check(Text("[2]", is_answer=True), "[2]")} == {"citation"}
    assert not list(reader.check(written, written.written))
    assert not list(reader.check(Text("[2]", is_answer=True), "[2]"))


def test_a_name_stays_with_its_document() -> None:
    written = text("Open WebUI", LEASE, RENT)
    received = written.written.replace("lease.md", "x").replace("rent.md", "lease.md")
    assert faults(written, received.replace("x", "rent.md")) == {"mixed"}


def test_a_json_text_is_compared_as_data() -> None:
    written = Text("", "", BY_NAME["JSON results"], (LEASE, RENT, LEASE))
    assert faults(written, json.dumps(json.loads(written.written), indent=1)) == set()
    quoted = 'Please refer to the document that begins with \\"Maria signed\\" in the previous'
    head, _, last = written.written.rpartition(LEASE.text)
    received = f"{head}{quoted} conversation.{last}"
    assert faults(written, json.dumps(json.loads(received), indent=1)) == set()
    assert faults(written, received.replace("Maria signed", "Bob signed")) == {"cut"}
    assert faults(written, received[:-1]) == {"cut"}


def test_a_repeated_document_may_be_left_out_and_no_other_doubled() -> None:
    written = text("<doc>", LEASE, RENT, LEASE)
    assert faults(written, listed(BY_NAME["<doc>"], LEASE, RENT)) == set()
    assert faults(written, listed(BY_NAME["<doc>"], LEASE, RENT, LEASE, RENT)) == {"doubled"}


def test_text_around_documents_and_without_them_is_the_clients() -> None:
    written = text("<doc>")
    assert faults(written, written.written.replace("who?", "why?")) == {"mixed"}
    assert faults(written, written.written.replace("[n]", "[m]")) == {"mixed"}
    assert faults(Text("Hello."), "Hello") == {"changed"}


def test_a_record_that_is_lost_from_a_pasted_file_is_seen() -> None:
    pasted = Text("<add>\n<doc>a</doc>\n<doc>b</doc>\n<doc>a</doc>\n</add>", is_pasted=True)
    assert faults(pasted, pasted.head.replace("<doc>a</doc>\n</add>", "</add>")) == {"lost"}
    moved = pasted.head.replace("<doc>a</doc>\n<doc>b</doc>", "<doc>b</doc>\n<doc>a</doc>")
    assert faults(pasted, moved) == {"pasted"}


async def test_what_one_tenant_has_sent_moves_nothing_of_another(tmp_path: Path) -> None:
    backend = Backend()
    settings = TEXT_WORLDS[0].settings([await backend.listen()], tmp_path, redis_url=None)
    rng = random.Random(1)
    application = Application(
        rng, TENANTS[0], number=1, layout=BY_NAME["blank lines"], place="user"
    )
    async with in_process(settings, backend) as call:
        for number in range(1, 13):
            request = application.ask(number)
            if number == 12:  # the same template and documents, but a tenant that is new
                key = (b"authorization", f"Bearer {TENANTS[1]}".encode())
                request = replace(request, headers=(key, *request.headers[1:]))
            backend.expect(number, Answer(ANSWER))
            await call(request)
            received = backend.forget(number)[-1]
            application.received(Payload(received.decode()).messages)
    await backend.close()
    assert json.loads(received)["messages"] == json.loads(request.body)["messages"]
