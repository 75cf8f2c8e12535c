"""Chunks are found in a prompt by their tokens, whatever their neighbours do to their ends."""

import asyncio
from collections.abc import Sequence

import pytest

from ragboost.chunk_cache.core.request import MIN_CHUNK_TOKENS
from ragboost.chunk_cache.http import spans
from ragboost.chunk_cache.http.spans import ChunkFinder, find_spans, pack_ids

CHUNK = list(range(100, 100 + 3 * MIN_CHUNK_TOKENS))
HEAD, TAIL = [1, 2, 3], [7, 8]


def find(prompt: Sequence[int], *texts: Sequence[int] | None) -> list[tuple[int, int]]:
    """Find texts, each given by the ids that it has alone; None: it cannot be tokenised."""
    return asyncio.run(find_async(prompt, *texts))


async def find_async(prompt: Sequence[int], *texts: Sequence[int] | None) -> list[tuple[int, int]]:
    ids = {str(number): text for number, text in enumerate(texts)}

    async def tokenize(text: str) -> Sequence[int] | None:
        return ids[text]

    found = await ChunkFinder().find(prompt, list(ids), tokenize=tokenize)
    return [span for span in found if span is not None]


def test_a_chunk_is_found_where_it_stands() -> None:
    assert find([*HEAD, *CHUNK, *TAIL], CHUNK) == [(3, 3 + len(CHUNK))]


def test_a_chunk_whose_ends_join_their_neighbours_is_found_without_them() -> None:
    joined = [*HEAD, 50, *CHUNK[1:-1], 51, *TAIL]

    assert find(joined, CHUNK) == [(4, 2 + len(CHUNK))]


def test_a_text_that_tokenises_differently_inside_the_prompt_is_not_found() -> None:
    shifted = [token + 500 for token in CHUNK]
    middle = [*CHUNK[: len(CHUNK) // 2], 9, *CHUNK[len(CHUNK) // 2 :]]

    assert find([*HEAD, *shifted, *TAIL], CHUNK) == []
    assert find([*HEAD, *middle, *TAIL], CHUNK) == []


def test_what_is_not_found_does_not_hide_what_follows() -> None:
    other = [token + 500 for token in CHUNK]

    assert find([*HEAD, *other, *TAIL], CHUNK, None, other) == [(3, 3 + len(CHUNK))]


def test_equal_chunks_are_found_one_after_the_other() -> None:
    length = len(CHUNK)

    assert find([*CHUNK, *CHUNK], CHUNK, CHUNK, CHUNK) == [(0, length), (length, 2 * length)]


def test_chunks_in_another_order_than_they_are_named_do_not_overlap() -> None:
    other = [token + 500 for token in CHUNK]

    assert find([*CHUNK, *other], other, CHUNK) == [(len(CHUNK), 2 * len(CHUNK))]


def test_a_short_text_is_not_looked_for() -> None:
    assert find([*HEAD, *CHUNK[: MIN_CHUNK_TOKENS - 1]], CHUNK[: MIN_CHUNK_TOKENS - 1]) == []


def test_a_text_is_tokenised_once() -> None:
    asked: list[str] = []

    async def tokenize(text: str) -> Sequence[int]:
        asked.append(text)
        return CHUNK

    async def look_twice() -> None:
        finder = ChunkFinder()
        for _ in range(2):
            await finder.find(CHUNK, ["text"], tokenize=tokenize)

    asyncio.run(look_twice())

    assert asked == ["text"]


def test_a_chunk_is_not_found_between_two_tokens() -> None:
    """Bytes of tokens 256 hold those of tokens 65,536, shifted by one."""
    assert find([256] * 40, [65_536] * MIN_CHUNK_TOKENS) == []


def test_ids_that_are_no_characters_are_not_found() -> None:
    assert find([*CHUNK, -1], CHUNK) == find([*CHUNK, 1 << 31], CHUNK) == []


async def test_thousands_of_chunks_that_are_not_there_leave_the_event_loop_to_others() -> None:
    prompt = list(range(1_000, 132_000))
    num_other = 0

    async def work() -> None:
        nonlocal num_other
        while True:
            num_other += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    absent = [[at, *range(10, 30)] for at in range(200)]
    assert await find_async(prompt, *absent, range(5_000, 5_100)) == [(4_000, 4_100)]
    assert num_other >= len(absent)
    other.cancel()


def test_a_search_in_vain_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_MAX_COMPARED", 10_000)
    absent = [pack_ids([at, *range(10, 30)]) for at in range(4_096)]
    assert find_spans(range(1_000, 2_000), [*absent, pack_ids(range(1_100, 1_200))]) == []
