"""Run `ragboost serve` as processes, as a user does."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from tests.eventually import DEADLINE_S, SERVER_START_S, eventually

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


class ServedProxy:
    """A proxy with several workers on a free port.

    Args:
        options: of `ragboost serve`.
        environment: further variables, such as settings.

    Attributes:
        url: base URL.
        lines: of its log so far.
    """

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        self.url = ""
        self.lines: list[str] = []
        self._options = options
        self._environment = environment or {}

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "ragboost", "serve", "--port", "0", *self._options]
        environment = {
            "PYTHONPATH": str(ROOT),
            "RAGBOOST_TOKENS__ASK_BACKEND": "false",
            **self._environment,
        }
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        eventually(lambda: self.url or self.process.poll() is not None, within_s=SERVER_START_S)
        if not self.url:
            self.__exit__()
        assert self.url, self.log
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def log(self) -> str:
        """The log so far."""
        return "".join(self.lines)

    @property
    def workers(self) -> list[psutil.Process]:
        """The worker processes, by number."""
        children = psutil.Process(self.process.pid).children()
        return [each for each in children if "spawn_main" in " ".join(each.cmdline())]

    def ready(self) -> dict[str, Any]:
        """Return the answer of `/ready`."""
        answer: dict[str, Any] = httpx.get(f"{self.url}/ready").json()
        return answer

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by its label values, worker first."""
        values = {}
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(name + "{"):
                labels, _, value = line.removeprefix(name + "{").rpartition("} ")
                values[tuple(re.findall(r'"([^"]*)"', labels))] = float(value)
        return values

    def are_synchronised(self, num_workers: int = 2) -> bool:
        """Return True if every worker answers, hears all others, and follows the events exactly."""
        alive = self.metric("ragboost_workers_alive")
        states = self.metric("ragboost_kv_event_stream_state")
        num_exact = sum(value for labels, value in states.items() if "exact" in labels)
        num_streams = len({(labels[0], labels[-1]) for labels in states})
        return alive == {(str(number),): num_workers - 1.0 for number in range(num_workers)} and (
            num_exact == num_streams
        )

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := _LISTENING.search(line):
                self.url = f"http://127.0.0.1:{found[1]}"
