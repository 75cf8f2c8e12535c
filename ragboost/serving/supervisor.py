"""Run a server in several processes: start them, restart those that die, and stop them together."""

import logging
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from ragboost.errors import ConfigError, RagBoostError

logger = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0
_STABLE_S = 10.0  # a worker that lived so long is restarted at once
_KILL_AFTER_S = 10.0  # beyond the time to drain
_READY = ""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def stop_signals(stop: Callable[..., None]) -> Iterator[None]:
    """Call `stop` at SIGTERM, SIGINT, and SIGHUP unless that is ignored, as by nohup."""
    previous = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    previous = {number: each for number, each in previous.items() if each is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class WorkerLink:
    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the supervisor has died."""
        return self._pipe.fileno()

    def ready(self) -> None:
        self._pipe.send(_READY)

    def failed(self, reason: str) -> None:
        self._pipe.send(reason)


class Supervisor:
    """A group of worker processes, each a new interpreter with arguments of its own.

    Each calls `run`, a top-level function, with its `WorkerLink` and its arguments, also when it is
    restarted, and may take `drain_s` to finish its requests after SIGTERM.
    """

    def __init__(
        self, run: Callable[..., None], arguments: Sequence[tuple[Any, ...]], *, drain_s: float
    ) -> None:
        self._workers = [_Worker(number, run, options) for number, options in enumerate(arguments)]
        self._drain_s = drain_s
        self._is_stopping = False

    def run(self, *, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> None:
        """Run the workers until a signal stops them, and then until they have drained.

        A ConfigError is raised if a worker could not start the first time. `on_stop` is called
        before the workers stop.
        """
        with self._signals() as woken:
            try:
                self._start(woken)
                if not self._is_stopping:
                    on_ready()
                while not self._is_stopping:
                    self._step(woken)
            finally:
                on_stop()
                self._stop()

    def _start(self, woken: socket.socket) -> None:
        for worker in self._workers:
            worker.start()
        while not (self._is_stopping or all(worker.is_ready for worker in self._workers)):
            self._wait(woken, timeout=None)
            for worker in self._workers:
                worker.read()
                if worker.failure is not None:
                    raise ConfigError(worker.failure)
                if worker.has_ended:
                    raise ConfigError(f"{worker.name} ended while it started; see its log")

    def _step(self, woken: socket.socket) -> None:
        now = time.monotonic()
        dues = [worker.restart_at - now for worker in self._workers if worker.restart_at]
        self._wait(woken, timeout=max(0.0, min(dues)) if dues else None)
        now = time.monotonic()
        for worker in self._workers:
            worker.read()
            if self._is_stopping:
                return
            if worker.has_ended and not worker.restart_at:
                worker.plan_restart(now)
            elif worker.restart_at and worker.restart_at <= now:
                worker.start()

    def _wait(self, woken: socket.socket, *, timeout: float | None) -> None:
        handles: list[Any] = [woken]
        for worker in self._workers:
            handles += worker.handles
        if woken in wait(handles, timeout):
            woken.recv(4096)

    def _stop(self) -> None:
        self._is_stopping = True
        for worker in self._workers:
            worker.terminate()
        deadline = time.monotonic() + self._drain_s + _KILL_AFTER_S
        for worker in self._workers:
            worker.join(deadline)

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        woken, waker = socket.socketpair()
        waker.setblocking(False)

        def stop(*_: object) -> None:
            self._is_stopping = True
            waker.send(b"s")

        with woken, waker, stop_signals(stop):
            yield woken


class _Worker:
    def __init__(self, number: int, run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.name = f"worker-{number}"  # of its processes
        self.is_ready = False  # the process has served
        self.failure: str | None = None  # the reason that it gave for not starting
        self.restart_at = 0.0  # time at which the next process is started; 0 while one runs
        self._run = run
        self._arguments = arguments
        self._process: SpawnProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._started_at = 0.0
        self._num_deaths = 0  # one soon after the other

    @property
    def has_ended(self) -> bool:
        return self._process is not None and not self._process.is_alive()

    @property
    def handles(self) -> list[Any]:
        handles: list[Any] = [] if self._pipe is None else [self._pipe]
        if self._process is not None and not self.restart_at:
            handles.append(self._process.sentinel)
        return handles

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.restart_at, self._started_at = 0.0, time.monotonic()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(self._run, WorkerLink(theirs), self._arguments), name=self.name
        )
        self._process.start()
        theirs.close()

    def read(self) -> None:
        try:
            while self._pipe is not None and self._pipe.poll():
                report = self._pipe.recv()
                if report == _READY:
                    self.is_ready = True
                else:
                    self.failure = report
        except (EOFError, OSError):
            self._close_pipe()

    def plan_restart(self, now: float) -> None:
        """Start the next process later after each quick death."""
        assert self._process is not None, "never started"
        is_quick = now - self._started_at < _STABLE_S
        self._num_deaths = self._num_deaths + 1 if is_quick else 0
        delay = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2**self._num_deaths) if is_quick else 0.0
        self.restart_at = now + delay
        logger.warning(
            "%s ended with exit code %s; starting another in %.1f s",
            self.name,
            self._process.exitcode,
            delay,
        )
        self._close_pipe()

    def terminate(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.terminate()

    def join(self, deadline: float) -> None:
        if self._process is None:
            return
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            logger.error("%s does not end; killing it", self.name)
            self._process.kill()
            self._process.join()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _work(run: Callable[..., None], link: WorkerLink, arguments: tuple[Any, ...]) -> None:
    try:
        run(link, *arguments)
    except RagBoostError as error:
        link.failed(str(error))
