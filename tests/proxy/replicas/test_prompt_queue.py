"""Prompts that wait for others, in bounded memory."""

from collections import deque

from ragboost.booster.tenants import TenantKey
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.replicas.messages import SentPrompt, take_prompts


def prompt(name: str, num_documents: int) -> SentPrompt:
    lengths = (1,) * num_documents
    documents = tuple(map(str, range(num_documents)))
    layout = PromptLayout(TenantKey("m", ""), documents, lengths, lengths, 1, 1)
    return SentPrompt("backend", name, layout)


def names(prompts: tuple[SentPrompt, ...]) -> list[str | None]:
    return [each.request_id for each in prompts]


def test_at_least_one_is_taken_and_no_more_than_the_bounds_allow() -> None:
    waiting = deque(prompt(str(number), size) for number, size in enumerate((7, 3, 2, 1, 1)))
    taken = [names(take_prompts(waiting, max_prompts=2, max_documents=5)) for _ in range(4)]
    assert taken == [["0"], ["1", "2"], ["3", "4"], []]
