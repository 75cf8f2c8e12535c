"""Lengths of documents: estimates at once, counted in the background, remembered, corrected."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from ragboost import Booster, Document
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.booster.tokens import TokenCounter, make_counter
from ragboost.booster.tokens.local import count_in_background, load_tokenizer
from ragboost.config import Settings, TokenSettings
from ragboost.config.memory import PROCESS_BYTES
from ragboost.errors import ConfigError
from tests.eventually import eventually
from tests.integrity import check_index


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(WordLevel({"word": 0, "unk": 1}, unk_token="unk"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("a", 1), ("abcd", 1), ("abcde", 2), ("", 1), ("日本語文", 3), ("\ud800", 1)],
)
def test_an_estimate_is_a_token_per_four_bytes(text: str, tokens: int) -> None:
    assert TokenCounter().count(text) == tokens


def test_a_document_is_counted_once_with_its_title() -> None:
    calls = []

    def count(text: str) -> int:
        calls.append(text)
        return len(text.split())

    counter = TokenCounter(count)
    documents = [Document("one two", title="Title"), Document("three")]

    assert counter.count_documents(documents) == [3, 1]
    assert counter.count_documents(documents[::-1]) == [1, 3]
    assert calls == ["Title\none two", "three"]
    assert counter.are_exact(document.key for document in documents)


def test_a_document_is_at_least_one_token_long() -> None:
    assert TokenCounter(lambda _: 0).count_documents([Document("x")]) == [1]


@pytest.mark.parametrize("count", [None, len])
def test_the_cache_is_bounded_and_keeps_what_is_used(count: Callable[[str], int] | None) -> None:
    counter = TokenCounter(count, max_documents=10)
    first = Document("first")
    for i in range(100):
        counter.count_documents([first, Document(f"text {i}")])
    assert len(counter) == 10
    assert counter.are_exact([first.key]) == (count is not None)


def test_nothing_is_wanted_where_nobody_counts() -> None:
    counter = TokenCounter()
    counter.count_documents([Document("x")])
    assert counter.take_wanted(10) == []


def test_what_was_estimated_is_wanted_until_it_is_learned_or_given_up() -> None:
    counter = TokenCounter()
    counter.is_counted = True
    document = Document("x" * 400, title="T")
    assert counter.count_documents([document]) == [101]
    (wanted,) = counter.take_wanted(10)
    assert (wanted.key, wanted.text) == (document.key, "T\n" + "x" * 400)
    counter.count_documents([document])
    assert counter.take_wanted(10) == []  # being counted
    counter.give_up([wanted.key])
    counter.count_documents([document])
    assert len(counter.take_wanted(10)) == 1
    assert not counter.are_exact([document.key])
    counter.learn(document.key, 3)
    assert counter.count_documents([document]) == [3]
    assert counter.are_exact([document.key])


def test_what_is_wanted_is_bounded_and_what_is_dropped_is_wanted_again() -> None:
    counter = TokenCounter()
    counter.is_counted = True
    documents = [Document(f"text {i}") for i in range(5000)]
    counter.count_documents(documents)
    assert len(counter.take_wanted(10_000)) == 4096
    counter.count_documents(documents[:1])
    assert counter.take_wanted(1)[0].key == documents[0].key


def test_counters_share_the_memory_for_texts_that_wait() -> None:
    settings = Settings(proxy={"memory_bytes": PROCESS_BYTES + 32 * 6400})
    tenants = Tenants(settings)
    tenants.is_counting = True
    counters = [tenants.get(TenantKey(f"model-{i}", "")).tokens for i in range(2)]
    for i in range(100):
        for counter in counters:
            counter.count_documents([Document(f"{i:0200}")])
    texts = [len(counter.take_wanted(1000)) for counter in counters]
    assert min(texts) > 0
    assert 20 < sum(texts) <= 33, "all together, and a 64th of that for each"


def test_counted_documents_correct_the_estimates_of_others() -> None:
    counter = TokenCounter()
    counter.is_counted = True
    documents = [Document(f"{i:04}" * 1000) for i in range(3)]
    assert counter.count_documents(documents) == [1000] * 3
    for key, text in counter.take_wanted(2):
        counter.learn(key, len(text) // 2)
    assert counter.tokens_per_byte == 0.5
    assert counter.count_documents(documents) == [2000] * 3


def test_reported_prompts_correct_estimates_and_images_do_not_run_away_with_them() -> None:
    booster = Booster()
    document = Document("x" * 8000)
    context = booster.boost("?", [document])
    booster.report_usage(context, prompt_tokens=4000, cached_tokens=0)
    assert booster.tokens.count_documents([document])[0] == pytest.approx(4000, rel=0.02)
    for _ in range(20):
        booster.report_usage(context, prompt_tokens=10**7, cached_tokens=0)
    assert booster.tokens.count_documents([document]) == [8000]


def test_a_local_tokenizer_counts_in_the_background(tokenizer: Path) -> None:
    document = Document("word " * 100)
    booster = Booster(Settings(tokens=TokenSettings(tokenizer=tokenizer)))
    before = booster.boost("?", [document])
    assert before.index_entry is not None
    assert before.index_entry.tokens == (125,)
    assert not booster.is_measured(before)
    eventually(lambda: booster.tokens.are_exact([document.key]))
    after = booster.boost("?", [document])
    assert (after.predicted_cached_tokens, booster.is_measured(after)) == (125, True)
    assert booster.boost("?", [document]).predicted_cached_tokens == 100
    check_index(booster.index)


def test_a_lone_surrogate_is_counted_as_what_an_engine_would_get(tokenizer: Path) -> None:
    assert load_tokenizer(tokenizer / "tokenizer.json")(["word \ud800"]) == [[0, 1]]


def test_the_background_ends_with_its_counter() -> None:
    counters = [TokenCounter()]
    thread = count_in_background(counters[0], lambda texts: [[1]] * len(texts))
    document = Document("x" * 100)
    counters[0].count_documents([document])
    eventually(lambda: counters[0].are_exact([document.key]))
    counters.clear()
    gc.collect()
    thread.join()


@pytest.mark.parametrize("text", [None, "no json", "[]", '{"version": 1}'])
def test_what_is_no_tokenizer_is_a_config_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokens\.tokenizer"):
        make_counter(TokenSettings(tokenizer=tmp_path))
