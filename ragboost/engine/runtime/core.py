"""The engine thread: owns the model, takes requests from any thread, steps the scheduler.

Knows token ids. Does not know text or HTTP.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from ragboost.engine.runtime.chunk_scheduler import ChunkScheduler
from ragboost.engine.runtime.graph import Graphs
from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.engine.runtime.prefix_cache import Event
from ragboost.engine.runtime.prefix_store import PrefixStore
from ragboost.engine.runtime.request import EngineRequest
from ragboost.engine.runtime.scheduler import Scheduler


class Add(NamedTuple):
    """Queue a sequence."""

    sequence: EngineRequest


class Abort(NamedTuple):
    """Forget a sequence."""

    sequence: EngineRequest


class Reset(NamedTuple):
    """Drop all cached blocks, then say so."""

    done: "Future[None]"


class Stop(NamedTuple):
    """End the thread."""


Command = Add | Abort | Reset | Stop


class Engine:
    """A model behind a thread.

    Args:
        runner: the model.
        store: its prefix cache.
        max_running: sequences in one batch.
        max_step_tokens: tokens computed in one step.
        max_waiting: requests that may wait; more are refused.
        publish: called in the engine thread with the cache events of each step.
        reuser: reuses chunks; None: requests must not ask for it.
        graphs: computes prompts with graphs; None: there must be none.
    """

    def __init__(
        self,
        runner: ModelRunner,
        store: PrefixStore,
        *,
        max_running: int,
        max_step_tokens: int,
        max_waiting: int,
        publish: Callable[[Sequence[Event]], None] | None = None,
        reuser: ChunkScheduler | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.runner = runner
        self.store = store
        self.reuser = reuser
        self.scheduler = Scheduler(
            runner,
            store,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            reuser=reuser,
            graphs=graphs,
        )
        self._max_pending = max_running + max_waiting
        self._publish = publish
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._num_pending = 0
        self._pending_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed = False

    @property
    def is_healthy(self) -> bool:
        """Whether the thread runs and no step has failed."""
        return self._thread is not None and self._thread.is_alive() and not self._failed

    @property
    def num_running(self) -> int:
        """Requests that are being computed."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that were submitted and have not started."""
        return max(0, self._num_pending - self.num_running)

    def start(self) -> None:
        """Start the thread."""
        assert self._thread is None, "the engine was started before"
        self._thread = threading.Thread(target=self._run, name="ragboost-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Fail what is running, and wait for the thread to end. Twice does nothing."""
        if self._thread is not None and self._thread.is_alive():
            self._inbox.put(Stop())
            self._thread.join()

    def submit(self, sequence: EngineRequest) -> bool:
        """Queue a sequence; its outputs come through its `emit`, in the engine thread.

        Returns:
            False if too many requests wait or the engine has failed: nothing was queued then.
        """
        with self._pending_lock:
            if self._num_pending >= self._max_pending or not self.is_healthy:
                return False
            self._num_pending += 1
            self._inbox.put(Add(sequence))
        return True

    def abort(self, sequence: EngineRequest) -> None:
        """Stop computing a sequence; nothing more is emitted soon after. Ended ones are ignored."""
        self._inbox.put(Abort(sequence))

    def reset_prefix_cache(self) -> "Future[None]":
        """Drop all cached blocks between two steps. Running requests go on with their own KV."""
        done: Future[None] = Future()
        with self._pending_lock:
            if not self._failed:
                self._inbox.put(Reset(done))
                return done
        done.set_result(None)  # there is nothing left to drop it for
        return done

    def _run(self) -> None:
        """Step until told to stop. A failing step ends the thread, too: its hook logs the error."""
        try:
            while self._take_commands():
                if self.scheduler.has_work:
                    self._forget(len(self.scheduler.step()))
                    self._publish_events()
        finally:
            self._close()

    def _take_commands(self) -> bool:
        """Obey what has come in, waiting for it where there is nothing to compute; False: stop."""
        while True:
            try:
                command = self._inbox.get(block=not self.scheduler.has_work)
            except queue.Empty:
                return True
            match command:
                case Stop():
                    return False
                case Add(sequence):
                    self.scheduler.add(sequence)
                case Abort(sequence):
                    self._abort(sequence)
                case Reset(done):
                    self.store.cache.clear()
                    self._publish_events()
                    done.set_result(None)

    def _abort(self, sequence: EngineRequest) -> None:
        before = len(self.scheduler.running) + len(self.scheduler.waiting)
        self.scheduler.abort(sequence)
        self._forget(before - len(self.scheduler.running) - len(self.scheduler.waiting))

    def _close(self) -> None:
        with self._pending_lock:
            self._failed = True  # nothing is submitted from here on
        self._fail_all()
        self.scheduler.close()
        while not self._inbox.empty():
            match self._inbox.get():
                case Add(sequence):
                    self._forget(1)
                    sequence.fail()
                case Reset(done):
                    done.set_result(None)
                case _:
                    pass

    def _fail_all(self) -> None:
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self._abort(sequence)
            sequence.fail()

    def _forget(self, num_sequences: int) -> None:
        with self._pending_lock:
            self._num_pending -= num_sequences

    def _publish_events(self) -> None:
        events = self.store.take_events()
        if events and self._publish is not None:
            self._publish(events)
