"""Prompts that wait for others, in bounded memory."""

from ragboost.booster.tenants import TenantKey
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.replicas.messages import PromptQueue, SentPrompt


def prompt(name: str, num_documents: int) -> SentPrompt:
    lengths = (1,) * num_documents
    documents = tuple(map(str, range(num_documents)))
    layout = PromptLayout(TenantKey("m", ""), documents, lengths, lengths, 1, 1)
    return SentPrompt("backend", name, layout)


def names(prompts: tuple[SentPrompt, ...]) -> list[str | None]:
    return [each.request_id for each in prompts]


def test_the_oldest_are_dropped_beyond_a_number_of_prompts_or_documents() -> None:
    waiting = PromptQueue(max_prompts=3, max_documents=10)
    for name in "abcd":
        waiting.add(prompt(name, 1))
    assert len(waiting) == 3
    waiting.add(prompt("e", 9))
    assert names(waiting.take(max_prompts=9, max_documents=99)) == ["d", "e"]
    waiting.add(prompt("f", 11))
    assert not waiting.take(max_prompts=9, max_documents=99)
    waiting.add(prompt("g", 10))
    assert len(waiting) == 1


def test_at_least_one_is_taken_and_no_more_than_the_bounds_allow() -> None:
    waiting = PromptQueue(max_prompts=9, max_documents=99)
    for number, size in enumerate((7, 3, 2, 1, 1)):
        waiting.add(prompt(str(number), size))
    taken = [names(waiting.take(max_prompts=2, max_documents=5)) for _ in range(4)]
    assert taken == [["0"], ["1", "2"], ["3", "4"], []]
