"""The engine thread: owns the model, takes requests from any thread and steps the scheduler."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from ragboost.cache_events import Event
from ragboost.engine.runtime.request import EngineRequest
from ragboost.engine.runtime.scheduler import Scheduler

_LOOK_AGAIN_S = 0.001


class Engine:
    """A model served by one thread. Beyond `max_waiting` requests are rejected; `publish` is called
    in the thread with the cache events of each step."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        max_waiting: int,
        publish: Callable[[Sequence[Event]], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner, self.store = scheduler.runner, scheduler.store
        self.chunk_filler = scheduler.chunk_filler
        self.max_pending = scheduler.max_running + max_waiting
        self._publish = publish
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pending: set[EngineRequest] = set()  # submitted and not ended
        self._lock = threading.Lock()  # guards _pending and _has_ended
        self._thread: threading.Thread | None = None
        self._is_stopping = self._has_ended = False

    @property
    def is_healthy(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._has_ended

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return max(0, len(self._pending) - self.num_running)

    def start(self) -> None:
        assert self._thread is None, "the engine was started before"
        self._thread = threading.Thread(target=self._run, name="ragboost-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Fail all pending requests and wait for the thread to end."""
        if self._thread is not None and self._thread.is_alive():
            self._commands.put(self._stop)
            self._thread.join()

    def submit(self, request: EngineRequest) -> bool:
        """Queue a request, whose `emit` is called in the engine thread; return False if the queue
        is full or the engine has ended."""
        with self._lock:
            if len(self._pending) >= self.max_pending or not self.is_healthy:
                return False
            self._pending.add(request)
            self._commands.put(partial(self._add, request))
        return True

    def abort(self, request: EngineRequest) -> None:
        """Stop computing a request; its outputs end within one step."""
        self._commands.put(partial(self._abort, request))

    def reset_prefix_cache(self) -> "Future[None]":
        """Drop all cached blocks between two steps. Running requests keep their own KV."""
        done: Future[None] = Future()
        with self._lock:
            if not self._has_ended:
                self._commands.put(partial(self._reset, done))
                return done
        done.set_result(None)
        return done

    def _run(self) -> None:
        """Step until stopped. A broken invariant ends the thread, and its hook logs the error."""
        try:
            while True:
                self._run_commands()
                if self._is_stopping:
                    break
                self._discard(self.scheduler.step())
                self._publish_events()
        finally:
            self._close()

    def _run_commands(self) -> None:
        """Run the queued commands, and wait for more while there is nothing to compute."""
        while True:
            has_work = self.scheduler.has_work or self._is_stopping
            timeout_s = _LOOK_AGAIN_S if self.scheduler.waiting else None
            try:
                command = self._commands.get(block=not has_work, timeout=timeout_s)
            except queue.Empty:
                return
            command()

    def _stop(self) -> None:
        self._is_stopping = True

    def _add(self, request: EngineRequest) -> None:
        if not self._has_ended:
            self.scheduler.add(request)

    def _abort(self, request: EngineRequest) -> None:
        self.scheduler.abort(request)
        self._discard([request])

    def _reset(self, done: "Future[None]") -> None:
        self.scheduler.reset()
        self._publish_events()
        done.set_result(None)

    def _close(self) -> None:
        with self._lock:
            self._has_ended = True  # nothing is submitted from here on
        while not self._commands.empty():
            self._commands.get()()
        for request in list(self._pending):
            self._abort(request)
            request.fail()
        self.scheduler.close()

    def _discard(self, requests: Sequence[EngineRequest]) -> None:
        if requests:
            with self._lock:
                self._pending.difference_update(requests)

    def _publish_events(self) -> None:
        events = self.store.cache.take_events()
        if events and self._publish is not None:
            self._publish(events)
