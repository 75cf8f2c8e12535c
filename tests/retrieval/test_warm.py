"""`ragboost warm`: what a retriever finds for a corpus orders the first requests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ragboost
from ragboost.config import Settings

ROOT = Path(__file__).parents[2]
TEXTS = {
    "lease": "the lease of the house was signed by the owner",
    "owner": "the owner of the house signed the lease in May",
    "whale": "whales breathe air",
    "stars": "stars burn hydrogen",
}


def write_corpus(folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    lines = [json.dumps({"id": name, "text": text}) + "\n" for name, text in TEXTS.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def warm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ragboost", "warm", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def first_order(prior: Path, *, with_ids: bool) -> list[str]:
    settings = Settings.model_validate({"ordering": {"tail": "popularity", "prior": prior}})
    names = ["lease", "whale", "owner", "stars"]
    documents = [
        {"id": name, "text": TEXTS[name]} if with_ids else {"text": TEXTS[name]} for name in names
    ]
    # Long, since what a prior promises counts half until requests show that documents come again.
    booster = ragboost.Booster(settings, count_tokens=lambda text: 3_000)
    by_text = {text: name for name, text in TEXTS.items()}
    return [by_text[d.text] for d in booster.boost("who signed?", documents).documents]


@pytest.mark.parametrize("with_ids", [True, False])
def test_documents_that_a_retriever_finds_together_stand_together_in_the_first_request(
    tmp_path: Path, with_ids: bool
) -> None:
    done = warm(write_corpus(tmp_path), "-o", tmp_path / "prior.json", "--k", 2)

    assert done.returncode == 0, done.stderr
    assert "4 documents, 4 contexts" in done.stdout
    assert first_order(tmp_path / "prior.json", with_ids=with_ids)[:2] == ["lease", "owner"]


def test_a_retriever_of_ones_own_is_named_by_its_function(tmp_path: Path) -> None:
    done = warm(
        write_corpus(tmp_path),
        "-o",
        tmp_path / "prior.json",
        "--retriever",
        "tests.retrieval.test_warm:make_pairs",
    )

    assert done.returncode == 0, done.stderr
    assert first_order(tmp_path / "prior.json", with_ids=True)[:2] == ["lease", "stars"]


@pytest.mark.parametrize("name", ["nosuchmodule:f", "json:nothing", "json"])
def test_a_retriever_that_does_not_exist_is_one_sentence(tmp_path: Path, name: str) -> None:
    done = warm(write_corpus(tmp_path), "-o", tmp_path / "prior.json", "--retriever", name)

    assert done.returncode == 2
    assert "--retriever must be bm25 or module:function" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_corpus_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = warm(tmp_path / "empty.jsonl", "-o", tmp_path / "prior.json")

    assert done.returncode == 2
    assert "empty.jsonl has no documents" in done.stderr
    assert not (tmp_path / "prior.json").exists()


def test_the_output_is_checked_before_the_work_and_is_never_the_corpus(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    before = corpus.read_bytes()
    for output, problem in (
        (corpus, "is an input of the job"),
        (tmp_path / "none" / "prior.json", "none is not a directory"),
    ):
        done = warm(corpus, "-o", output, "--retriever", "nothing.of:this_name")

        assert done.returncode == 2
        assert problem in done.stderr
    assert corpus.read_bytes() == before


class Pairs:
    """Finds the first and the last document, whatever is asked."""

    def __init__(self, documents: list[ragboost.Document]) -> None:
        self.documents = documents

    def retrieve(self, query: str, k: int) -> list[ragboost.Document]:
        return [self.documents[0], self.documents[-1]]


def make_pairs(documents: list[ragboost.Document]) -> Pairs:
    return Pairs(documents)
