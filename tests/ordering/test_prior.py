"""A prior from the corpus orders the first requests, and fades as others come."""

from pathlib import Path

import pytest

from ragboost.config import OrderingSettings
from ragboost.errors import ConfigError, RequestError
from ragboost.ordering import CorpusPrior, RecentContexts, read_prior
from ragboost.types import Document

TOKENS = dict.fromkeys("abcd", 1_000)


def prior(*contexts: str) -> CorpusPrior:
    return CorpusPrior(list("abcd"), [["abcd".index(d) for d in context] for context in contexts])


def test_documents_that_the_corpus_has_together_come_first_before_any_request() -> None:
    recent = RecentContexts(prior(*["ad"] * 20))

    assert recent.order("abcd", TOKENS) == ["a", "d", "b", "c"]
    assert recent.order("bcd", TOKENS, prefix="a") == ["d", "b", "c"]
    assert recent.order("acd", TOKENS, prefix="b") == ["a", "c", "d"]


def test_a_document_behind_a_prompt_prefix_is_the_same_document() -> None:
    a, b, c, d = keys = [Document(text).key for text in "abcd"]
    recent = RecentContexts(CorpusPrior([[key] for key in keys], [[0, 3]] * 20))
    elements = ["system" + a, "system" + b, ("system" + c, 1), "system" + d]

    ordered = recent.order(elements, dict.fromkeys(elements, 1_000))

    assert ordered == ["system" + a, "system" + d, "system" + b, ("system" + c, 1)]


def test_the_prior_fades_as_requests_come() -> None:
    recent = RecentContexts(prior(*["ad"] * 200))
    orders = []
    for _ in range(1_000):
        orders.append(recent.order("abcd", TOKENS))
        recent.add("abc")

    assert orders[0] == ["a", "d", "b", "c"]
    assert orders[-1] == ["a", "b", "c", "d"]


def test_a_prior_that_requests_contradict_loses_its_weight() -> None:
    orders = []
    for context in ("ad", "ab"):  # with the first document the corpus has the fourth
        recent = RecentContexts(prior(*["ad"] * 20, *["bc"] * 2))
        for _ in range(30):
            recent.add(context)
        orders.append(recent.order("dc", TOKENS, prefix="b"))

    assert orders == [["c", "d"], ["d", "c"]]


def test_a_prior_is_worth_no_hint_where_no_document_comes_again() -> None:
    orders = []
    for start in ("new", "a"):  # of the names of what other requests have
        recent = RecentContexts(prior(*["ad"] * 4))
        for number in range(30):
            recent.add([f"{start}{number if start == 'new' else ''}"])
        orders.append(recent.order("abcd", TOKENS, prefix=""))

    assert orders == [["a", "b", "c", "d"], ["a", "d", "b", "c"]]


def test_a_prior_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    prior("ad", "bc", "ab").write(path)

    read = read_prior(OrderingSettings(tail="popularity", prior=path))

    assert read is not None
    assert repr(read) == "CorpusPrior(4 documents, 3 contexts)"
    assert read.behind("a") == {0, 2}
    assert read.holders("x") == frozenset()


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"no JSON", b"\xff", b"[" * 10**5])
def test_another_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prior.json"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"prior\.json is not a file that `ragboost warm` wrote"):
        CorpusPrior.read(path)


def test_a_prior_needs_the_tail_that_uses_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'needs ordering.tail = "popularity"'):
        read_prior(OrderingSettings(tail="relevance", prior=tmp_path / "prior.json"))
    with pytest.raises(ConfigError, match="cannot read"):
        CorpusPrior.read(tmp_path / "none.json")
    with pytest.raises(RequestError, match="cannot write"):
        prior("ab").write(tmp_path / "none" / "prior.json")
