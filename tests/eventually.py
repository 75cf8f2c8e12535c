"""Wait in a test for what another thread, task or process does, however slow the machine is.

The only clock and the only sleep of the tests. Where an event can be awaited, await it instead.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0  # reached by a failing test alone
SERVER_START_S = 240.0  # of a process that imports torch and loads a model
_POLL_S = 0.005
_ANYTHING_TRUE = object()


def eventually(
    condition: Callable[[], T],
    *,
    equals: Any = _ANYTHING_TRUE,
    ignoring: tuple[type[Exception], ...] = (AssertionError,),
    within_s: float = DEADLINE_S,
) -> T:
    """Call `condition` until it returns something true, or `equals`, and return that.

    Args:
        condition: called in this thread, again and again.
        equals: the value to wait for instead of a true one; a failure then says both.
        ignoring: exceptions of the condition that mean "not yet".
        within_s: seconds before the test fails.

    Raises:
        AssertionError: the condition was not met in time; names what it last returned or raised.
    """
    polls = _poll(condition, equals, ignoring, within_s)
    while True:
        try:
            next(polls)
        except StopIteration as met:
            return met.value  # type: ignore[no-any-return]
        time.sleep(_POLL_S)


async def eventually_async(condition: Callable[[], T], **options: Any) -> T:
    """Do as `eventually`, with its options, and let the event loop run between two calls."""
    polls = _poll(condition, **options)
    while True:
        try:
            next(polls)
        except StopIteration as met:
            return met.value  # type: ignore[no-any-return]
        await asyncio.sleep(_POLL_S)


async def run_event_loop(passes: int = 20) -> None:
    """Let the event loop pass so many times over its tasks and sockets."""
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
