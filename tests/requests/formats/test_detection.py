"""What was seen of a request's documents: one word and a kind of frame, none of the client's."""

import pytest

from ragboost.config import Settings
from ragboost.requests.formats import (
    AmbiguousDocumentsError,
    Detection,
    NothingToDoError,
    make_formats,
)
from ragboost.requests.formats.detection import ADVICE, DetectionCounts, frame_kind
from ragboost.requests.formats.documents import find_format
from ragboost.requests.formats.evidence.evidence import DocumentSpan, Evidence
from ragboost.requests.formats.unmarked import UnmarkedDocuments
from tests.requests.formats.rewriting import user


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ("<secret-tag>", "tags"),
        ("json", "json"),
        ("Dokument n", "lines"),
        ("Patient, Diagnosis", "lines"),
    ],
)
def test_a_kind_of_frame_has_none_of_the_clients_words(frame: str, kind: str) -> None:
    assert frame_kind(frame) == kind


def test_what_is_left_alone_keeps_its_frame_and_number() -> None:
    ambiguous = AmbiguousDocumentsError("<doc>", "an odd mark")
    assert Detection.left("ambiguous_documents", ambiguous) == ("ambiguous_documents", "tags", 0)
    assert Detection.left("nothing_to_do", NothingToDoError(3)) == ("nothing_to_do", "", 3)


def test_a_forged_log_does_not_make_the_counts_grow() -> None:
    counts = DetectionCounts()
    for number in range(1000):
        counts.add(Detection(f"name {number}"))
    assert len(counts.as_json()) == 101
    assert sum(row["requests"] for row in counts.as_json()) == 1000


def test_every_line_of_counts_says_what_helps() -> None:
    counts = DetectionCounts()
    for _ in range(2):
        counts.add(Detection("no_documents"))
    counts.add(Detection("found", "tags", 4))
    assert counts.lines() == [
        f"no_documents: 2 requests; {ADVICE['no_documents']}",
        "found (tags): 1 requests, 4 documents",
    ]


class _Recorder(Evidence):
    """Evidence that notes who may teach it."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def cut(
        self, *args: object, learns: bool = True, **options: object
    ) -> tuple[DocumentSpan, ...]:
        self.calls.append(learns)
        return ()


def test_a_trial_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, evidence = Settings(), _Recorder()
    formats = make_formats(settings)
    monkeypatch.setattr(
        formats[-1], "_unmarked", UnmarkedDocuments(settings, evidence=evidence), raising=True
    )
    body = user("A paragraph of some length about leases.\n\n" * 20)
    for learns in (True, False):
        assert find_format(formats, body, tenant="t", learns=learns) is None
    assert evidence.calls == [True, False]
