"""Wait in a test for the effect of another thread, task or process, on machines of any speed.

Holds the only clock and the only sleep of the tests. Prefer to await an event where there is one.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0  # reached by failing tests only
SERVER_START_S = 240.0  # for a process that imports torch and loads a model
_POLL_S = 0.005
_ANYTHING_TRUE = object()


def eventually(
    condition: Callable[[], T],
    *,
    equals: Any = _ANYTHING_TRUE,
    ignoring: tuple[type[Exception], ...] = (AssertionError,),
    within_s: float = DEADLINE_S,
) -> T:
    """Call `condition` until it returns a true value, or `equals`, and return the value.

    Args:
        condition: called repeatedly in this thread.
        equals: value to wait for instead of any true one; an error then shows it.
        ignoring: exceptions of the condition that mean "not yet".
        within_s: timeout in seconds.

    Raises:
        AssertionError: the condition was not met in time; shows its last value or exception.
    """
    polls = _poll(condition, equals, ignoring, within_s)
    while True:
        try:
            next(polls)
        except StopIteration as met:
            return met.value  # type: ignore[no-any-return]
        time.sleep(_POLL_S)


async def eventually_async(condition: Callable[[], T], **options: Any) -> T:
    """Wait as `eventually` does, with its options, and run the event loop between calls."""
    polls = _poll(condition, **options)
    while True:
        try:
            next(polls)
        except StopIteration as met:
            return met.value  # type: ignore[no-any-return]
        await asyncio.sleep(_POLL_S)


async def run_event_loop(passes: int = 20) -> None:
    """Let the event loop run `passes` iterations."""
    for _ in range(passes):
        await asyncio.sleep(0)


def _poll(
    condition: Callable[[], T],
    equals: Any = _ANYTHING_TRUE,
    ignoring: tuple[type[Exception], ...] = (AssertionError,),
    within_s: float = DEADLINE_S,
) -> Generator[None, None, T]:
    deadline = time.monotonic() + within_s
    seen: object
    while True:
        try:
            seen = value = condition()
            if bool(value) if equals is _ANYTHING_TRUE else value == equals:
                return value
        except ignoring as error:
            seen = error
        if time.monotonic() > deadline:
            wanted = "" if equals is _ANYTHING_TRUE else f", expected {equals!r}"
            raise AssertionError(f"not met within {within_s:g} s: last saw {seen!r}{wanted}")
        yield
