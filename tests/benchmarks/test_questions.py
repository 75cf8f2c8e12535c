"""Every format is recognised, converted and read by the evaluation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets.questions import convert
from ragboost.errors import RequestError
from ragboost.evaluation.loading import LoadedQuestions, load_questions

HOTPOT = {
    "_id": "h1",
    "question": "Where was Ada born?",
    "answer": "London",
    "supporting_facts": [["Ada", 0]],
    "context": [
        ["Ada", ["Ada was born in London. ", "She wrote."]],
        ["Bern", ["Bern is a city."]],
        ["Rome", ["Rome is old."]],
    ],
}
MUSIQUE = {
    "id": "2hop__1",
    "question": "Who led the society?",
    "answer": "Hall",
    "answer_aliases": ["G. Hall"],
    "paragraphs": [
        {"idx": 0, "title": "Society", "paragraph_text": "The society was led by Hall."},
        {"idx": 1, "title": "Other", "paragraph_text": "Nothing here."},
    ],
}
MULTIHOP = {
    "query": "Who is accused?",
    "answer": "Sam",
    "question_type": "inference_query",
    "evidence_list": [
        {"title": "Trial", "fact": "Sam is accused."},
        {"title": "Other", "fact": "It rained."},
    ],
}
QASPER = {
    "1909.1": {
        "title": "A paper",
        "abstract": "We study parsers.",
        "full_text": [
            {"section_name": "Data", "paragraphs": ["The data is Penn Treebank.", "", "It ran."]}
        ],
        "qas": [
            {
                "question": "Which data?",
                "question_id": "a",
                "answers": [{"answer": {"extractive_spans": ["Penn Treebank"], "yes_no": None}}],
            },
            {
                "question": "Is it fast?",
                "question_id": "b",
                "answers": [{"answer": {"extractive_spans": [], "yes_no": False}}],
            },
            {
                "question": "Why?",
                "question_id": "c",
                "answers": [{"answer": {"unanswerable": True}}],
            },
        ],
    }
}
NARRATIVE = {
    "document": {"id": "d", "text": "Ada sails to Rome. " * 150, "summary": {"text": "Ada sails."}},
    "question": {"text": "Where does Ada sail?"},
    "answers": [{"text": "Rome"}, {"text": "to Rome"}],
}


def mtrag(turn: int, *texts: str) -> dict[str, Any]:
    return {
        "conversation_id": "c",
        "task_id": f"c::{turn}",
        "turn": turn,
        "contexts": [{"document_id": f"d{n}", "text": t, "title": ""} for n, t in enumerate(texts)],
        "input": [{"speaker": "user", "text": f"question {turn}?"}],
        "targets": [{"speaker": "agent", "text": f"answer {turn}"}],
        "Multi-Turn": float("nan"),
    }


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load_converted(path: Path, **options: Any) -> LoadedQuestions:
    converted = convert(path, **options)
    loaded = load_questions(write(path.with_name("converted.jsonl"), *converted.rows))
    return loaded._replace(num_rejected=loaded.num_rejected + len(converted.problems))


@pytest.mark.parametrize(
    ("name", "row", "answers", "first"),
    [
        ("hotpotqa", HOTPOT, ("London",), "Ada was born in London. She wrote."),
        ("2wiki", HOTPOT | {"evidences": []}, ("London",), "Ada was born in London. She wrote."),
        ("musique", MUSIQUE, ("Hall", "G. Hall"), "The society was led by Hall."),
        ("multihop-rag", MULTIHOP, ("Sam",), "Sam is accused."),
        ("qasper", QASPER, ("Penn Treebank",), "The data is Penn Treebank."),
        ("narrativeqa", NARRATIVE, ("Rome", "to Rome"), None),
        ("mtrag", mtrag(1, "one", "two"), ("answer 1",), "one"),
    ],
)
@pytest.mark.parametrize("shape", ["lines", "list", "indented"])
def test_a_format_is_recognised_and_its_documents_are_ranked(
    tmp_path: Path, name: str, row: Any, answers: tuple[str, ...], first: str | None, shape: str
) -> None:
    path = tmp_path / "file.json"
    if shape == "lines":
        write(path, row, row)
    else:
        path.write_text(json.dumps([row], indent=2 if shape == "indented" else None))

    assert convert(path).format == name
    loaded = load_converted(path)
    assert loaded.num_rejected == 0
    assert loaded.questions[0].answers == answers
    assert first in (None, loaded.questions[0].documents[0].text)
    assert len({one.id for one in loaded.questions}) == len(loaded.questions)


def test_paragraphs_of_all_questions_are_one_pool_without_repetitions(tmp_path: Path) -> None:
    path = write(tmp_path / "h.jsonl", HOTPOT, HOTPOT | {"_id": "h2", "question": "Bern?"})

    one, two = load_converted(path, k=5).questions

    assert {d.key for d in one.documents} == {d.key for d in two.documents}
    assert two.documents[0].title == "Bern"


def test_unanswerable_questions_of_a_paper_are_left_out_and_yes_no_is_an_answer(
    tmp_path: Path,
) -> None:
    loaded = load_converted(write(tmp_path / "q.json", QASPER))

    assert [one.answers for one in loaded.questions] == [("Penn Treebank",), ("no",)]


def test_narrativeqa_joins_questions_and_summaries(tmp_path: Path) -> None:
    questions, summaries = tmp_path / "qaps.csv", tmp_path / "summaries.csv"
    questions.write_text(
        'document_id,set,question,answer1,answer2\nd,test,"Where, Ada?",Rome,Roma\n'
    )
    summaries.write_text('document_id,set,summary\nd,test,"Ada sails, to Rome."\n')

    (one,) = load_converted(questions, corpus=summaries).questions

    assert (one.text, one.answers) == ("Where, Ada?", ("Rome", "Roma"))
    assert [d.text for d in one.documents] == ["Ada sails, to Rome."]


def test_multihop_rag_retrieves_from_its_articles(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps([{"title": "T", "body": "Sam is accused of fraud. " * 100}]))

    (one,) = load_converted(write(tmp_path / "q.jsonl", MULTIHOP), corpus=corpus).questions

    assert all("fraud" in document.text for document in one.documents)
    assert len(one.documents) > 1


def test_turns_of_mt_rag_belong_to_their_conversation(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", mtrag(1), mtrag(2, "a", "b"), mtrag(3, "b"))

    two, three = load_converted(path).questions

    assert (two.conversation, three.conversation) == ("c", "c")
    assert two.text == "question 2?"
    assert [document.id for document in two.documents] == ["d0", "d1"]


def test_the_command_writes_lines_that_the_evaluation_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", mtrag(1, "a"), mtrag(2, "b"), {"turn": 3})
    command = [sys.executable, "-m", "benchmarks.datasets.questions", str(path), "--limit", "1"]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    out = tmp_path / "q.jsonl"
    out.write_text(done.stdout)
    assert [one.text for one in load_questions(out).questions] == ["question 1?"]
    assert "skipped 1 malformed records" in done.stderr


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--format must be one of mtrag, .*, got 'squad'"):
        convert(tmp_path / "q.jsonl", name="squad")
    with pytest.raises(RequestError, match="the format is not recognised; see --format"):
        convert(write(tmp_path / "q.jsonl", {"a": 1}))


def test_a_field_of_another_type_is_an_error_of_that_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", mtrag(1, "a"), {**mtrag(2, "a"), "targets": 3})

    assert load_converted(path).num_rejected == 1
