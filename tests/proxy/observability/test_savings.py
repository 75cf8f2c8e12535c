"""The page and `/metrics` say what RAGBoost saved, and not what the engine's cache saves anyway."""

import itertools
import random
from collections.abc import Callable

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.prefix_cache import tokenize
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

SAVED, EXTRA = "ragboost_saved_prompt_tokens_total", "ragboost_extra_prompt_tokens_total"
Start = Callable[..., ProxyServer]
NUMBERS = itertools.count()  # each question begins with another token
Question = tuple[str, ...]


def block_text(name: str) -> str:
    """Return a text whose estimate, a quarter of its bytes, is exactly what the engine counts for
    its block in the prompt: label, text and blank line."""
    words = [f"{name}{at % 10}" for at in range(60)]
    missing = 4 * num_tokens(f"{name}\n{' '.join(words)}\n\n") - len(" ".join(words))
    assert missing > 0
    return " ".join([*words[:-1], words[-1] + "x" * missing])


def num_tokens(text: str) -> int:
    return len(tokenize(text))


TEXTS = {name: block_text(name) for name in "abcdefghijklmnop"}


def ask(url: str, names: Question, *, is_boosted: bool, **fields: object) -> None:
    documents = [{"id": name, "text": TEXTS[name]} for name in names]
    options = {} if is_boosted else {"options": {"boost": False}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Q{next(NUMBERS)}?"}],
        "ragboost": {"documents": documents, **options, **fields},
    }
    httpx.post(f"{url}/v1/chat/completions", json=body).raise_for_status()


def computed(
    questions: list[tuple[Question, bool]], *, boosts: bool
) -> tuple[int, dict[str, float]]:
    """Return what an engine of its own computed, and the page's figures."""
    settings = {"hints": {"order": False, "label_template": "{label}"}}
    with (
        FakeEngine(block_size=1) as engine,
        ProxyServer(proxy_settings(engine.url, **settings)) as proxy,
    ):
        for names, is_boosted in questions:
            ask(proxy.url, names, is_boosted=boosts and is_boosted)
        totals = httpx.get(f"{proxy.url}/dashboard/data").json()["totals"]
        net = read_metric(proxy.url, SAVED) - read_metric(proxy.url, EXTRA)
        assert net == totals["saved_tokens"]
        return sum(r.prompt_tokens - r.cached_tokens for r in engine.completions), totals


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_saved_is_what_an_engine_without_us_computes_more(share: float) -> None:
    draw = random.Random(7)
    questions = []
    for at in range(24):
        is_boosted = draw.random() < share
        names = "abcdefgh" if is_boosted else "ijklmnop"  # they share no documents
        questions.append((tuple(draw.sample(names, 4 - at % 2)), is_boosted))

    plain, without = computed(questions, boosts=False)
    boosted, totals = computed(questions, boosts=True)

    assert totals["saved_tokens"] == plain - boosted
    assert (totals["saved_tokens"] > 0) == (share > 0)
    assert totals["boosted"] == sum(is_boosted for _, is_boosted in questions)
    assert totals["completions"] == 24
    assert totals["engine_cached_tokens"] == without["cached_tokens"] > 0  # named as the engine's


def test_duplicates_and_documents_of_earlier_turns_are_saved(start_proxy: Start) -> None:
    proxy = start_proxy(hints={"order": False, "location": False})
    ask(proxy.url, ("a", "b", "a"), is_boosted=True)
    assert read_metric(proxy.url, SAVED, by="deduplication") == len(TEXTS["a"]) / 4
    assert read_metric(proxy.url, SAVED, by="order") == 0


def test_hints_are_subtracted(start_proxy: Start) -> None:
    proxy = start_proxy()
    for names in itertools.permutations("abc"):
        ask(proxy.url, names, is_boosted=True)
    hints = read_metric(proxy.url, EXTRA, by="hints")
    assert hints > 0
    totals = httpx.get(f"{proxy.url}/dashboard/data").json()["totals"]
    assert totals["saved_tokens"] == read_metric(proxy.url, SAVED) - hints


def test_what_the_engine_denies_or_never_answered_is_not_saved(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(hints={"order": False})
    ask(proxy.url, ("a", "b", "c"), is_boosted=True)
    engine.cache.clear()
    ask(proxy.url, ("c", "b", "a"), is_boosted=True)
    assert read_metric(proxy.url, SAVED) == 0
    engine.misbehave(status=500)
    with pytest.raises(httpx.HTTPStatusError):
        ask(proxy.url, ("b", "c", "a"), is_boosted=True)
    assert read_metric(proxy.url, SAVED) == 0


def test_after_many_requests_a_sample_stands_for_all(
    start_proxy: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ragboost.booster.tenants._ALL", 12)
    draw = random.Random(3)
    proxy = start_proxy(hints={"order": False})
    for _ in range(60):
        ask(proxy.url, tuple(draw.sample("abcdefgh", 4)), is_boosted=True)
    cached = read_metric(proxy.url, "ragboost_cached_prompt_tokens_total")
    assert 0.3 * cached < read_metric(proxy.url, SAVED, by="order") < cached
