"""A batch file comes out whole: every line written or rejected, every document kept."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragboost.batch import RejectedLinesError, run_batch
from ragboost.batch.simulate import HitRate
from ragboost.config import DedupSettings, HintSettings, OrderingSettings, Settings
from ragboost.errors import RequestError
from ragboost.integrations.retrieval import Corpus
from ragboost.types import Document

TEXTS = {name: f"{name} " * 40 for name in "abcdefgh"}


def plain(names: str, **fields: Any) -> dict[str, Any]:
    documents = [{"id": name, "text": TEXTS[name]} for name in names]
    return {"id": names, "question": f"about {names}?", "documents": documents, **fields}


def openai(names: str, *, system: str | None = None, **body: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": f"about {names}?"})
    return {
        "custom_id": names,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": messages, **body},
    }


def with_object(names: str, **fields: Any) -> dict[str, Any]:
    documents = [{"id": name, "text": TEXTS[name]} for name in names]
    return openai(names, ragboost={"documents": documents}, **fields)


def with_field(names: str, **fields: Any) -> dict[str, Any]:
    documents = [{"title": name, "text": TEXTS[name]} for name in names]
    return openai(names, documents=documents, **fields)


def write_lines(path: Path, lines: list[Any]) -> Path:
    encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(tmp_path: Path, lines: list[Any], **options: Any) -> tuple[Any, list[Any]]:
    source = write_lines(tmp_path / "in.jsonl", lines)
    summary = run_batch(source, tmp_path / "out.jsonl", **options)
    return summary, read_lines(tmp_path / "out.jsonl")


def positions(tmp_path: Path) -> list[Any]:
    return read_lines(tmp_path / "out.positions.jsonl")


def rejects(tmp_path: Path) -> list[Any]:
    return read_lines(tmp_path / "out.rejects.jsonl")


def ids(line: dict[str, Any]) -> str:
    return "".join(document["id"] for document in line["documents"])


WORKING_MB = 8  # arrays of the clustering, whatever the file
REQUESTS = ["abcd", "efgh", "cabe", "hgfa", "bcad", "fehg"]


def test_plain_lines_keep_their_documents_and_share_prefixes(tmp_path: Path) -> None:
    summary, lines = run(tmp_path, [plain(names) for names in REQUESTS], cache_tokens=200)

    assert sorted(line["id"] for line in lines) == sorted(REQUESTS)
    assert all(sorted(ids(line)) == sorted(line["id"]) for line in lines)
    assert summary.requests == 6
    assert summary.documents == 24
    assert summary.after.hit_rate > summary.before.hit_rate


def test_position_map_leads_from_every_output_line_to_the_input(tmp_path: Path) -> None:
    _, lines = run(tmp_path, [plain(names) for names in REQUESTS])

    for number, (line, entry) in enumerate(zip(lines, positions(tmp_path), strict=True), 1):
        names = REQUESTS[entry["input_line"] - 1]
        assert entry["output_line"] == number
        assert entry["id"] == line["id"] == names
        assert ids(line) == "".join(names[i] for i in entry["documents"])


def test_hint_names_the_relevance_order_where_documents_moved(tmp_path: Path) -> None:
    _, lines = run(tmp_path, [plain(names) for names in REQUESTS])

    for line in lines:
        if ids(line) == line["id"]:
            assert "hints" not in line
        else:
            assert " >> ".join(f"[Doc_{name}]" for name in line["id"]) in line["hints"][0]


def test_ragboost_object_is_rendered_into_the_question(tmp_path: Path) -> None:
    _, lines = run(tmp_path, [with_object(names, temperature=0.5) for names in REQUESTS])

    for line in lines:
        content = line["body"]["messages"][-1]["content"]
        assert set(line["body"]) == {"model", "messages", "temperature"}
        assert content.endswith(f"about {line['custom_id']}?")
        assert all(content.count(TEXTS[name]) == 1 for name in line["custom_id"])


def test_documents_field_is_reordered_and_the_hint_stands_at_the_question(tmp_path: Path) -> None:
    _, lines = run(tmp_path, [with_field(names) for names in REQUESTS])

    assert any("by relevance" in line["body"]["messages"][-1]["content"] for line in lines)
    for line in lines:
        titles = "".join(document["title"] for document in line["body"]["documents"])
        assert sorted(titles) == sorted(line["custom_id"])


def test_doc_ids_are_found_in_the_corpus_and_stay_ids(tmp_path: Path) -> None:
    corpus = Corpus([Document(text, id=name) for name, text in TEXTS.items()])
    requests = [{"id": n, "question": "?", "doc_ids": list(n)} for n in REQUESTS]

    summary, lines = run(tmp_path, requests, corpus=corpus)

    assert all(sorted(line["doc_ids"]) == sorted(line["id"]) for line in lines)
    assert all("documents" not in line for line in lines)
    assert summary.after.hit_rate > 0


def test_missing_corpus_ids_are_rejected_by_name(tmp_path: Path) -> None:
    corpus = Corpus([Document("x", id=1)])
    requests = [
        {"id": 0, "question": "?", "doc_ids": [1]},
        {"id": 1, "question": "?", "doc_ids": [1, "1"]},
        {"id": 2, "question": "?", "doc_ids": [[1]]},
        {"id": 3, "question": "?", "doc_ids": 1},
    ]

    summary, lines = run(tmp_path, requests, corpus=corpus)

    assert (len(lines), summary.rejected) == (1, 3)
    assert [entry["error"] for entry in rejects(tmp_path)] == [
        'doc_ids[1]: "1" is not in the corpus',
        "doc_ids[0] must be a JSON scalar",
        "doc_ids must be a list, got number",
    ]


def test_doc_ids_without_a_corpus_are_rejected_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(RejectedLinesError, match="give it with --corpus"):
        run(tmp_path, [{"id": 1, "question": "?", "doc_ids": ["a"]}])

    assert "--corpus" in rejects(tmp_path)[0]["error"]


def test_duplicates_in_a_request_are_sent_once(tmp_path: Path) -> None:
    summary, lines = run(tmp_path, [plain("abab"), plain("ba")])

    assert sorted(sorted(ids(line)) for line in lines) == [["a", "b"], ["a", "b"]]
    assert summary.duplicates_removed == 2


def test_duplicates_stay_where_deduplication_is_off(tmp_path: Path) -> None:
    options = Settings(dedup=DedupSettings(enabled=False))
    summary, lines = run(tmp_path, [plain("abab"), plain("ba")], settings=options)

    assert sorted("".join(sorted(ids(line))) for line in lines) == ["aabb", "ab"]
    assert summary.duplicates_removed == 0


@pytest.mark.parametrize("documents", [[], None])
def test_request_without_documents_keeps_its_bytes(tmp_path: Path, documents: Any) -> None:
    fields = {} if documents is None else {"documents": documents}
    raw = [
        json.dumps({"question": "?", **fields, "extra": "é"}, ensure_ascii=False).encode(),
        json.dumps(openai("x", **fields), indent=None, separators=(",", " :  ")).encode(),
    ]
    source = write_lines(tmp_path / "in.jsonl", raw)

    run_batch(source, tmp_path / "out.jsonl")

    assert (tmp_path / "out.jsonl").read_bytes() == source.read_bytes()


def test_one_document_is_not_reordered_and_has_no_hint(tmp_path: Path) -> None:
    line = plain("a")

    assert run(tmp_path, [line])[1] == [line]


def test_ids_of_any_scalar_type_come_through_unchanged(tmp_path: Path) -> None:
    documents = [{"id": i, "text": f"{i!r}"} for i in (1, "1", 1.5, True, None, "", "ü")]
    request = {"id": False, "question": "?", "documents": documents}

    _, lines = run(tmp_path, [request, {**request, "documents": documents[::-1]}])

    for line in lines:
        assert line["id"] is False
        assert sorted(map(repr, line["documents"])) == sorted(map(repr, documents))


def test_ten_thousand_documents_in_one_line_stay_ten_thousand(tmp_path: Path) -> None:
    documents = [{"id": i, "text": f"text {i}"} for i in range(10_000)]
    _, lines = run(
        tmp_path,
        [
            {"id": 1, "question": "?", "documents": documents},
            {"id": 2, "question": "?", "documents": documents[5000:]},
        ],
    )

    sizes = {line["id"]: {document["id"] for document in line["documents"]} for line in lines}
    assert {name: len(found) for name, found in sizes.items()} == {1: 10_000, 2: 5_000}


def test_caller_who_wants_no_boost_gets_the_documents_as_they_are(tmp_path: Path) -> None:
    untouched = with_object("dcba")
    untouched["body"]["ragboost"]["options"] = {"boost": False}
    untouched["body"]["ragboost"]["documents"].append({"id": "d", "text": TEXTS["d"]})
    _, lines = run(tmp_path, [untouched, *(with_object(names) for names in REQUESTS)])

    content = lines[-1]["body"]["messages"][-1]["content"]
    assert [content.index(TEXTS[name]) for name in "dcba"] == sorted(
        content.index(TEXTS[name]) for name in "dcba"
    )
    assert content.count(TEXTS["d"]) == 2
    assert "by relevance" not in content


def test_requests_behind_different_system_prompts_are_not_mixed(tmp_path: Path) -> None:
    requests = [
        with_object(names, system=f"system {i % 2}") for i, names in enumerate(REQUESTS * 2)
    ]

    _, lines = run(tmp_path, requests)

    systems = [line["body"]["messages"][0]["content"] for line in lines]
    assert systems == sorted(systems)


def test_equal_documents_behind_different_system_prompts_are_no_hit(tmp_path: Path) -> None:
    summary, _ = run(tmp_path, [with_object("ab", system=s) for s in ("one", "two", "three")])

    assert summary.before.cached_tokens == summary.after.cached_tokens == 0


BAD_LINES: list[tuple[Any, str]] = [
    (b'{"id": 1, "question": "?", "documents": ["\xff"]}', "not UTF-8 at byte 43"),
    (b'{"id": 1, "question"', "not JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"question": "?", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100"),
    (b"[1, 2]", "the line must be a JSON object, got array"),
    ({"foo": 1}, "it has foo"),
    ({}, "it has none"),
    ({"id": 1, "documents": ["a"]}, "question must be a string, got nothing"),
    (plain("a", question=3), "question must be a string, got 3"),
    (plain("a", id=[1]), "id must be a JSON scalar, got [1]"),
    (plain("a", doc_ids=["a"]), "documents and doc_ids exclude each other"),
    (plain("a", documents="a"), "documents must be a list"),
    (plain("a", documents=[{"text": 5}]), "documents[0].text"),
    (plain("a", documents=[{"id": {}, "text": "a"}]), "documents[0].id"),
    (
        b'{"question": "?", "documents": [{"text": "a", "score": NaN}]}',
        "documents[0].score must be finite, got nan",
    ),
    (b'{"question": "?", "documents": [{"text": "a", "score": 1e999}]}', "documents[0].score"),
    (openai("a", ragboost={"documents": [{"text": 5}]}), "ragboost.documents[0].text"),
    (openai("a", ragboost={"documets": []}), "ragboost.documets is unknown"),
    (openai("a", documents=[{"id": 1}]), "documents"),
    ({**openai("a"), "custom_id": 7}, "custom_id must be a string, got 7"),
    ({**openai("a"), "body": []}, "body must be an object, got []"),
    ({"body": {}, "custom_id": "x"}, "method must be a string, got nothing"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=lambda value: str(value)[:40])
def test_malformed_line_is_rejected_with_number_and_field(
    tmp_path: Path, line: Any, message: str
) -> None:
    summary, lines = run(tmp_path, [plain("ab"), line, b"", plain("cd")])

    assert [line["id"] for line in lines] == ["ab", "cd"]
    assert summary.rejected == 1
    entry = rejects(tmp_path)[0]
    assert entry["line"] == 2
    assert message in entry["error"]
    if not isinstance(line, bytes):
        assert json.loads(entry["text"]) == line


def test_strict_job_writes_rejects_only(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [plain("ab"), b"{"])

    with pytest.raises(RejectedLinesError, match=r"malformed lines: 1, see .*out\.rejects\.jsonl"):
        run_batch(source, tmp_path / "out.jsonl", strict=True)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.rejects.jsonl"]


def test_byte_order_mark_of_the_file_is_dropped(tmp_path: Path) -> None:
    _, lines = run(tmp_path, [b"\xef\xbb\xbf" + json.dumps(plain("a")).encode(), plain("b")])

    assert sorted(map(ids, lines)) == ["a", "b"]


def test_lone_surrogates_and_line_ends_of_windows_come_through(tmp_path: Path) -> None:
    odd = plain("ab", question="\ud800?")
    encoded = json.dumps(odd).encode() + b"\r"

    _, lines = run(tmp_path, [encoded, json.dumps(plain("ba")).encode() + b"\r"])

    assert "\ud800?" in [line["question"] for line in lines]


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_file_without_requests_makes_an_empty_output(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)

    summary = run_batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")

    assert summary.as_json()["before"] == {
        "hit_rate": 0.0,
        "cached_tokens": 0,
        "prompt_tokens": 0,
    }
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_last_line_needs_no_line_end(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(plain("ab")), encoding="utf-8")

    run_batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")

    assert read_lines(tmp_path / "out.jsonl") == [plain("ab")]


def test_input_is_never_overwritten(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [plain("ab")])
    (tmp_path / "link.jsonl").symlink_to(source)
    (tmp_path / "x.positions.jsonl").hardlink_to(source)

    for output in ("in.jsonl", "link.jsonl", "x.jsonl"):
        with pytest.raises(RequestError, match="is an input of the job"):
            run_batch(source, tmp_path / output)
    assert read_lines(source) == [plain("ab")]


def test_unusable_files_are_one_sentence(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [plain("ab")])
    (tmp_path / "zip.jsonl").write_bytes(b"\x1f\x8b\x08")

    for bad, output, message in (
        (tmp_path / "none.jsonl", tmp_path / "out.jsonl", "cannot read .*No such file"),
        (tmp_path, tmp_path / "out.jsonl", "must be a regular file"),
        (tmp_path / "zip.jsonl", tmp_path / "out.jsonl", "is compressed: unpack it first"),
        (source, tmp_path / "none" / "out.jsonl", "is not a directory"),
        (source, tmp_path, "not a regular file"),
    ):
        with pytest.raises(RequestError, match=message):
            run_batch(bad, output)


def test_failed_job_leaves_the_old_output_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [plain("ab"), plain("ba")])
    (tmp_path / "out.jsonl").write_text("old")

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(source, tmp_path / "out.jsonl", on_progress=stop)

    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_settings_of_ordering_and_hints_are_obeyed(tmp_path: Path) -> None:
    requests = [plain(names) for names in REQUESTS]
    asleep = Settings(ordering=OrderingSettings(enabled=False))
    mute = Settings(hints=HintSettings(order=False))
    last = Settings(ordering=OrderingSettings(keep_last=2))

    assert run(tmp_path, requests, settings=asleep)[1] == requests
    assert all("hints" not in line for line in run(tmp_path, requests, settings=mute)[1])
    for line in run(tmp_path, requests, settings=last)[1]:
        assert ids(line)[-2:] == line["id"][1::-1]


def test_prediction_equals_what_the_output_says(tmp_path: Path) -> None:
    summary, _ = run(tmp_path, [plain(names) for names in REQUESTS], cache_tokens=200)
    again = run_batch(
        tmp_path / "out.jsonl",
        tmp_path / "again.jsonl",
        settings=Settings(ordering=OrderingSettings(enabled=False)),
        cache_tokens=200,
    )

    assert again.before == again.after == summary.after
    assert isinstance(summary.after, HitRate)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([plain, with_object, with_field]),
            st.text(alphabet="abcdefgh", max_size=6),
        ),
        max_size=8,
    )
)
def test_no_document_is_lost_doubled_or_mixed(tmp_path: Path, requests: Any) -> None:
    _, lines = run(tmp_path, [make(names) for make, names in requests])

    assert len(lines) == len(requests)
    for line, entry in zip(lines, positions(tmp_path), strict=True):
        _, names = requests[entry["input_line"] - 1]
        assert entry["id"] == names
        text = json.dumps(line)
        assert all(text.count(TEXTS[name]) == 1 for name in set(names))
        assert sum(text.count(other) for other in TEXTS.values()) == len(set(names))


@pytest.mark.parametrize("words", [1, 1_000])
def test_a_job_needs_no_more_memory_than_it_estimates(tmp_path: Path, words: int) -> None:
    lines = [
        {"id": i, "question": "?", "documents": [f"{i} {j} " + "word " * words for j in "abc"]}
        for i in range(2_000)
    ]
    source = write_lines(tmp_path / "in.jsonl", lines)
    run_batch(source, tmp_path / "out.jsonl")  # loads what every job needs
    tracemalloc.start()
    run_batch(source, tmp_path / "out.jsonl")
    peak_mb = int(tracemalloc.get_traced_memory()[1] / 1e6)
    tracemalloc.stop()

    with pytest.raises(RequestError, match="MB of memory from line"):
        run_batch(source, tmp_path / "out.jsonl", memory_mb=max(peak_mb - WORKING_MB, 1))


def test_a_memory_below_one_megabyte_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [plain("ab")])

    with pytest.raises(RequestError, match="memory_mb must be at least 1, got 0"):
        run_batch(source, tmp_path / "out.jsonl", memory_mb=0)


def test_documents_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    blank = {"id": "x", "text": " "}
    lines = []
    for names in REQUESTS[::2]:
        line, ours, field = plain(names), with_object(names), with_field(names)
        lines += [line, ours, field]
        for documents in (
            line["documents"],
            ours["body"]["ragboost"]["documents"],
            field["body"]["documents"],
        ):
            documents.insert(1, blank)
            documents.append("")
    summary, written = run(tmp_path, [*lines, plain("", documents=[blank])])
    assert (summary.blank_removed, summary.rejected, summary.requests) == (19, 0, 10)
    assert summary.documents == 36
    for line, entry in zip(written, positions(tmp_path), strict=True):
        given = [*lines, plain("", documents=[blank])][entry["input_line"] - 1]
        names = given.get("custom_id", given.get("id", ""))
        places = [0, 2, 3, 4][: len(names)]
        assert sorted(entry["documents"]) == places
        if "documents" in line:
            assert line["documents"] == [given["documents"][at] for at in entry["documents"]]
        elif "documents" in line["body"]:
            documents = given["body"]["documents"]
            assert line["body"]["documents"] == [documents[at] for at in entry["documents"]]
