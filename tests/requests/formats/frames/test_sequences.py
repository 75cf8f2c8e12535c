"""Lists whose order is their content, and results of a search with the same fields."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.instructions.questions import Question
from tests.requests.formats.frames.texts import DOCUMENTS, elements, numbered, prompt

LONG = [f"{text} {text}" for text in DOCUMENTS]
Fields = Callable[[int], Mapping[str, Any]]  # of the element at a place
NO_ORDER = (3, 1, 4, 2)

SEQUENCES: dict[str, Fields] = {
    "chat": lambda i: {"username": "ann", "timestamp": f"2024-05-01T10:0{i}:00Z"},
    "messages": lambda i: {"sender_name": "Ann", "timestamp_ms": 17_000_000 + i},
    "speakers": lambda i: {"speakerId": i % 2, "confidence": 0.9},
    "mails": lambda i: {"subject": "Re: rent", "sent": f"2024-05-0{i + 1}"},
    "mails, newest first": lambda i: {"date": f"Fri, 0{9 - i} May 2024 10:00:00 +0200"},
    "months": lambda i: {"created": ("29 Apr 2024", "30 Apr 2024", "1 May 2024", "2 May 2024")[i]},
    "commits": lambda i: {"sha": f"{i * 7919:x}", "date": f"2024-05-0{i + 1}"},
    "commits without dates": lambda i: {"commit": f"a{i * 7919:x}", "title": "x"},
    "recording": lambda i: {"time": ("59:30", "1:00:02", "1:00:30", "1:01:00")[i]},
    "captions": lambda i: {"start": f"{i * 5}.0", "dur": "5.0"},
    "offsets": lambda i: {"offset": (4 - i) * 5000, "duration": 5000},
    "log": lambda i: {"at": f"{i * 5}s"},
    "equal minutes": lambda i: {"time": f"10:0{max(i, 1)}"},
    "articles by date": lambda i: {"title": f"t{i}", "date": f"2024-05-0{i + 1}"},
    "pages": lambda i: {"page": i + 5},
    "page labels": lambda i: {"page_label": f"{i + 5}", "source": "lease.pdf"},
    "chapters": lambda i: {"chapter": i + 5, "title": "x"},
    "slides": lambda i: {"slideNumber": i + 5},
    "steps": lambda i: {"title": f"Step {i + 5}: the roof"},
    "headings": lambda i: {"heading": f"第{i + 5}章"},
    "journey": lambda i: {"time": f"10:0{i}", "distance": i * 7},
    "match": lambda i: {"minute": 40 + i, "score": i},
    "notebook": lambda i: {"cell_type": "markdown"},
    "sides": lambda i: {"type": ("human", "ai")[i % 2]},
    "sides as classes": lambda i: {"kind": ("HumanMessage", "AIMessage")[i % 2]},
    "bots": lambda i: {"is_bot": bool(i % 2)},
    "authors in turn": lambda i: {"author": "AB"[i % 2]},
    "actions": lambda i: {"action": "search"},
    "parts of one": lambda i: {"part": f"{i + 1}/4"},
    "sections": lambda i: {"section": f"3.{i + 1}"},
    "lines of a file": lambda i: {"lines": f"{i * 40 + 1}-{i * 40 + 40}"},
    "pages of a file": lambda i: {"source": f"report.pdf#page={i + 5}"},
    "versions": lambda i: {"version": f"1.{i}"},
    "months by name": lambda i: {"month": ("Jan", "Feb", "Mar", "Apr")[i]},
    "days of months": lambda i: {"date": ("29.01.2024", "02.02.2024", "01.03.2024", "2.3.2024")[i]},
    "replies": lambda i: {"key": f"m{i}", "in_reply_to": f"m{i - 1}"},
    "a sequence": lambda i: {"seq": i},
}
RESULTS: dict[str, Fields] = {
    "pages": lambda i: {"page": (5, 9, 6, 30)[i]},
    "pages with a gap": lambda i: {"page": (5, 6, 8, 9)[i]},
    "scores": lambda i: {"score": 0.9 - i / 10},
    "pages and distances": lambda i: {"page": i + 5, "vectorDistance": 0.2 + i / 10},
    "pages, best last": lambda i: {"pageNumber": i + 5, "relevance_score": 0.2 + i / 10},
    "scores and dates": lambda i: {"score": 0.9 - i / 10, "date": f"2024-05-0{i + 1}"},
    "authors": lambda i: {"author": f"ann{i}"},
    "types": lambda i: {"type": ("pdf", "web")[i % 2]},
    "ranks": lambda i: {"rank": i + 1, "date": f"2024-05-0{i + 1}"},
    "indices": lambda i: {"index": i + 5},
    "ids": lambda i: {"id": f"item-{i}"},
    "dates": lambda i: {"title": f"t{i}", "url": "u", "date": f"2024-05-0{NO_ORDER[i]}"},
    "one author": lambda i: {"author": "ann"},
    "articles": lambda i: {"author": "ann", "published_at": f"2024-05-0{NO_ORDER[i]}"},
    "rows of a database": lambda i: {
        "created_at": f"2024-05-0{NO_ORDER[i]}",
        "updated_at": f"2024-06-0{NO_ORDER[i]}",
    },
    "chunks": lambda i: {"chunk_index": i, "start_index": i * 800},
    "pages of the web": lambda i: {"fetched_at": 17_000_000 + i},
    "code": lambda i: {"path": "a.py", "start": (50, 1, 9, 2)[i], "end": 60, "commit": f"a{i}"},
    "titles with numbers": lambda i: {"title": f"Lease {i}"},
    "a few authors": lambda i: {"author": ("Ann Lee", "Bo Ray", "Cy Fox", "Ann Lee")[i]},
    "titles of two authors": lambda i: {"title": f"t{i}", "author": "AB"[i % 2]},
    "lines of several files": lambda i: {"path": f"{i}.py", "lines": f"{i * 50 + 1}-{i * 50 + 9}"},
    "scores by tenths": lambda i: {"score": f"0.{i + 1}"},
    "chunks of a file": lambda i: {"source": f"report.pdf#chunk={NO_ORDER[i]}"},
}


def objects(fields: Fields) -> str:
    return json.dumps([{**fields(i), "text": text} for i, text in enumerate(LONG)])


def lines(fields: Fields) -> str:
    return "\n".join(json.dumps({**fields(i), "text": text}) for i, text in enumerate(LONG))


def attributes(fields: Fields) -> str:
    written = (" ".join(f'{key}="{value}"' for key, value in fields(i).items()) for i in range(4))
    return "\n".join(
        f"<fundus {each}>{text}</fundus>" for each, text in zip(written, LONG, strict=True)
    )


def children(fields: Fields) -> str:
    written = ("\n".join(f"<{k}>{v}</{k}>" for k, v in fields(i).items()) for i in range(4))
    return "\n".join(
        f"<document>\n{each}\n<text>{text}</text>\n</document>"
        for each, text in zip(written, LONG, strict=True)
    )


def headers(fields: Fields) -> str:
    written = ("\n".join(f"{k}: {v}" for k, v in fields(i).items()) for i in range(4))
    units = (f"{each}\nContent: {text}" for each, text in zip(written, LONG, strict=True))
    return "<context>\n{}\n</context>".format("\n\n".join(units))


WRITERS = (objects, lines, attributes, children, headers)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_list_whose_fields_are_in_order_stays(name: str, write: Callable[[Fields], str]) -> None:
    assert scan(prompt(write(SEQUENCES[name])), question=Question.ANNOUNCED).groups == ()


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", RESULTS)
def test_results_of_a_search_are_found(name: str, write: Callable[[Fields], str]) -> None:
    assert len(scan(prompt(write(RESULTS[name])), question=Question.ANNOUNCED).groups) == 1


@pytest.mark.parametrize("field", ["page", "pageNumber", "time"])
def test_the_field_that_says_the_order_is_named(field: str) -> None:
    values = [{"name": "a", field: f"10:0{i}" if field == "time" else i} for i in range(4)]
    for write in WRITERS:
        result = scan(prompt(write(lambda i: values[i])), question=Question.ANNOUNCED)
        assert repr(field) in result.order


def test_the_first_of_two_times_counts() -> None:
    parts = [{"timestamp": [i * 5.0, i * 5 + 4.5], "text": text} for i, text in enumerate(LONG)]
    assert scan(prompt(json.dumps(parts))).groups == ()


def test_what_a_loader_knows_of_a_text_is_asked_too() -> None:
    nodes = [{"text": text, "metadata": {"page": i}} for i, text in enumerate(LONG)]
    assert scan(prompt(json.dumps(nodes))).groups == ()
    assert scan(prompt(json.dumps(nodes[::2] + nodes[1::2]))).groups


def test_two_results_with_titles_may_be_in_order_by_chance() -> None:
    for fields in ({"title": "t", "date": "2024-05-0{}"}, {"source": "a.pdf", "page": "{}"}):
        listed = [
            {**{key: value.format(i) for key, value in fields.items()}, "text": text}
            for i, text in enumerate(LONG[:2], 3)
        ]
        assert scan(prompt(json.dumps(listed))).groups
        untitled = [{key: each[key] for key in (*list(fields)[1:], "text")} for each in listed]
        assert scan(prompt(json.dumps(untitled))).groups == ()


LISTS = {
    "labels": "\n\n".join(f"[{number}] {text}" for number, text in enumerate(LONG, 1)),
    "entries": "\n\n".join(f"Entry {number}: {text}" for number, text in enumerate(LONG, 1)),
    "JSON": json.dumps(LONG),
    "elements": elements("entry")(LONG),
    "headers": "\n\n".join(f"author: ann\nbody: {text}" for text in LONG),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_container_named_by_an_order_holds_no_documents(name: str) -> None:
    for tag in ("timeline", "diary", "gitlog", "chat_history", 'thread id="4"'):
        held = f"<{tag}>\n{LISTS[name]}\n</{tag.split()[0]}>"
        assert scan(prompt(held), question=Question.ANNOUNCED).groups == ()
    assert scan(prompt(f"<context>\n{LISTS[name]}\n</context>"), question=Question.ANNOUNCED).groups
    within = f"<conversation>\n<documents>\n{LISTS[name]}\n</documents>\n</conversation>"
    assert scan(prompt(within), question=Question.ANNOUNCED).groups


@pytest.mark.parametrize("name", ["JSON", "elements"])
def test_a_line_above_may_name_the_order(name: str) -> None:
    for line in ("Transcript:\n", "History: ", "**Chat log**:\n\n"):
        if name == "JSON" or line.endswith("\n"):
            assert scan(prompt(line + LISTS[name])).groups == ()
    for line in ("Documents of this chat:\n", "Context:\n", "Answer from the chat history.\n\n"):
        assert scan(prompt(line + LISTS[name])).groups


@pytest.mark.parametrize("tag", ["exchange", "msg", "caption"])
def test_elements_named_as_parts_of_an_order_stay(tag: str) -> None:
    assert scan(prompt(elements(tag)(LONG))).groups == ()


@pytest.mark.parametrize(
    "line",
    [
        *("Here is the transcript of our call:", "## Transcript", "**Log**", "Log (2024-01-02):"),
        *("Server logs, oldest first:", "Minutes of the meeting:", "Gesprächsverlauf:"),
        *("会议记录\uff1a", "聊天记录如下\uff1a", "Transcription :"),
    ],
)
def test_a_heading_may_name_the_order(line: str) -> None:
    for listed in (elements("chunk")(LONG), json.dumps(LONG)):
        assert scan(f"{line}\n{listed}\n\nWhy?").groups == ()
        assert scan(f"Documents from the log:\n{listed}\n\nWhy?").groups
        assert scan(f"You answer from a transcript.\n\n{listed}\n\nWhy?").groups


BEGINNINGS = {
    "date": ("2024-05-0{}: ", (1, 2, 4, 5)),
    "written date": ("{} May 2024: ", (3, 4, 8, 9)),
    "year": ("199{}: ", (1, 4, 5, 9)),
    "step": ("Step {}. ", (3, 4, 5, 6)),
    "law": ("\u00a7 {} ", (3, 4, 5, 6)),
    "side": ("{}: ", ("Human", "AI", "Human", "AI")),
    "initial": ("{}: ", "ABBA"),
    "name": ("{}: ", ("Alice", "Bob", "Alice", "Bob")),
    "day": ("{}: ", ("Monday", "Tuesday", "Friday", "Sunday")),
    "word": ("{}, ", ("First", "Second", "Then", "Finally")),
    "commit": ("commit {}\n", ("3f2a19c", "9b1d0e7", "c0ffee1", "0123abc")),
    "mail": ("From: {}\nSubject: Re: rent\n", ("ann", "bob", "cid", "dan")),
    "sentence with a date": ("On {}, 2024, ", ("March 3", "March 9", "April 1", "May 2")),
    "German date": ("{} 2024: ", ("3. März", "9. April", "1. Mai", "2. Dezember")),
    "French date": ("Le {} 2024, ", ("3 mars", "9 avril", "1er juin", "2 juillet")),
    "Chinese date": ("2024年{}日 ", ("3月3", "3月9", "4月1", "12月2")),
    "last change": ("Last updated: 2024-0{}-01\n", "9731"),
    "sentence with a year": ("In {}, ", ("1990", "1994", "1995", "2003")),
    "syslog": ("Nov {} 08:00:12 host sshd: ", ("3", "9", "11", "30")),
    "speaker": ("{}: ", ("Ms. Ortiz", "Mr. Lee", "Ms. Ortiz", "Mr. Lee")),
    "bold side": ("**{}:** ", ("User", "Assistant", "User", "Assistant")),
    "handle": ("@{} ", ("ann", "ben", "ann", "ben")),
    "release": ("## [1.{}.0] - ", "8765"),
    "heading": ("{}\n", ("2 Methods", "3 Results", "4 Discussion", "5 Summary")),
    "appendix": ("Appendix {}. ", "BCDE"),
    "letter": ("({}) ", "abcd"),
    "roman": ("{}. ", ("i", "ii", "iii", "iv")),
    "number word": ("Stage {}: ", ("one", "two", "three", "four")),
    "episode": ("S01E0{}: ", "1234"),
    "notebook": ("In [{}]:\n", "3456"),
    "any label": ("Tender {}: ", "4567"),
    "Chinese words": ("{}\uff0c", ("首先", "其次", "然后", "最后")),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_texts_that_follow_each_other_stay(name: str) -> None:
    beginning, values = BEGINNINGS[name]
    texts = [beginning.format(value) + text for value, text in zip(values, LONG, strict=True)]
    for listed in (elements("chunk")(texts), numbered("[{}]")(texts), json.dumps(texts)):
        assert scan(prompt(f"<context>\n{listed}\n</context>")).groups == ()


@pytest.mark.parametrize(
    "beginning",
    ["Handbook: ", "Lease {}: ", "{}. ", "The May lease {} ", "## 1.{}\n", "In 199{}, "],
)
def test_texts_that_begin_alike_are_found(beginning: str) -> None:
    texts = [beginning.format(n) + text for n, text in zip((7, 2, 9, 4), LONG, strict=True)]
    assert scan(prompt(elements("chunk")(texts))).groups


def test_files_named_by_chapter_stay() -> None:
    staying = ("ch/chapter{}.md", "d/2024-01-0{}.md", "db/000{}_x.sql", "report_v{}.md")
    for names, is_found in ((staying, False), (("a{}.md",), True)):
        for name in names:
            files = [f"{name.format(n)}\n```\n{text}\n```" for n, text in enumerate(LONG, 1)]
            assert bool(scan(prompt("\n\n".join(files))).groups) == is_found


@pytest.mark.parametrize(
    ("label", "is_found"),
    [
        *(("Rating: {}\nText:", False), ("Rank {}:", False), ("Article {}:", False)),
        *(("Stars {}:", False), ("Source: {}\n", True), ("ID: {}\n", True), ("Beleg {}:", True)),
    ],
)
def test_a_number_that_belongs_to_the_text_counts_no_place(label: str, *, is_found: bool) -> None:
    held = f"<context>\n{numbered(label)(LONG)}\n</context>"
    assert bool(scan(prompt(held)).groups) == is_found


@pytest.mark.parametrize("time", ["[00:0{}:12] ", "2024-01-01 12:0{}:00 ERROR "])
def test_texts_that_begin_with_rising_times_are_a_recording(time: str) -> None:
    def timed(*order: int) -> str:
        return elements("chunk")(
            [time.format(n) + text for n, text in zip(order, LONG, strict=True)]
        )

    assert scan(prompt(timed(1, 2, 4, 5))).groups == ()
    assert scan(prompt(timed(5, 4, 2, 1))).groups == ()
    assert scan(prompt(timed(4, 1, 5, 2))).groups


def test_plain_numbers_from_one_on_may_be_places() -> None:
    for beginning in ("{}. ", "[{}] ", "Result {}: ", "Tender {}: "):
        texts = [beginning.format(n) + text for n, text in enumerate(LONG, 1)]
        assert scan(prompt(elements("chunk")(texts))).groups
