"""Look again at what changes outside: mounted secrets, lists of backends. A look may hang."""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Generic, Protocol, TypeVar

from ragboost.errors import ConfigError

logger = logging.getLogger(__name__)

_MAX_BYTES = 1024 * 1024
_TIMEOUT_S = 10.0

T = TypeVar("T")


class HangingCall(Generic[T]):
    """A call that may never return, such as a look at a file of a file system that hangs.

    Runs in a thread of its own, of which there is never a second, and which ends with the process.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: asyncio.Future[T] | None = None  # that has not been read

    async def result(self, *, timeout_s: float) -> T:
        """Call, unless an earlier call has not been read, and return what it returned or raise
        what it raised.

        Raises:
            TimeoutError: it has not returned; what it returns later is for the next time.
        """
        if self._result is None:
            self._result = asyncio.get_running_loop().create_future()
            Thread(target=self._run, args=(self._result,), daemon=True).start()
        await asyncio.wait([self._result], timeout=timeout_s)
        if not self._result.done():
            raise TimeoutError
        result, self._result = self._result, None
        return result.result()

    def _run(self, result: "asyncio.Future[T]") -> None:
        try:
            end = partial(result.set_result, self._call())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            end = partial(result.set_exception, error)
        with suppress(RuntimeError):  # the event loop has ended
            result.get_loop().call_soon_threadsafe(end)


class WatchedFile:
    """A file whose contents are taken over now, and by `refresh` whenever they have changed.

    One that is missing, half-written, refused or does not answer later on leaves what was taken
    over before. `apply` takes over the contents, or raises a ConfigError that shows none of them.
    """

    def __init__(self, path: Path, *, setting: str, apply: Callable[[bytes], None]) -> None:
        self._path, self._setting, self._apply = path, setting, apply
        self._problem: str | None = None
        self._contents = b""
        self._look = HangingCall(self._read)
        self._take(self._read())

    async def refresh(self) -> None:
        """Look at the file again; a problem is logged once."""
        try:
            self._take(await self._look.result(timeout_s=_TIMEOUT_S))
        except (ConfigError, TimeoutError) as error:
            problem = str(error) or f"{self._setting}: {self._path} does not answer"
            if self._problem != problem:
                logger.warning("%s; what was read before still counts", problem)
            self._problem = problem

    def _take(self, contents: bytes) -> None:
        if contents != self._contents:
            try:
                self._apply(contents)
            except ConfigError as error:
                raise ConfigError(f"{self._setting}: {self._path} {error}") from None
            if self._contents:
                logger.info("%s: %s has changed, and is read again", self._setting, self._path)
            self._contents = contents
        self._problem = None

    def _read(self) -> bytes:
        try:
            with open(self._path, "rb", opener=_open_at_once) as file:
                is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                contents = file.read(_MAX_BYTES + 1) if is_file else b""
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
        else:
            if contents.strip() and len(contents) <= _MAX_BYTES:
                return contents
            why = "is no file, empty, or larger than 1 MiB"
        raise ConfigError(f"{self._setting}: {self._path} {why}")


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the writer of a FIFO; `open` closes what it refuses."""
    return os.open(path, flags | os.O_NONBLOCK)


class Refreshable(Protocol):
    async def refresh(self) -> None: ...


class Refresher:
    """Refreshes each part again and again; one that hangs holds no other."""

    def __init__(self, parts: Sequence[Refreshable], *, interval_s: float) -> None:
        self._parts = parts
        self._interval_s = interval_s

    async def open(self) -> None:
        self._tasks = [
            asyncio.create_task(self._run(part), name="looking for changes") for part in self._parts
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, part: Refreshable) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await part.refresh()
