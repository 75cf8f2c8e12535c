"""A small cluster on this machine: engines, replicas of the proxy, Redis and a load balancer.

Every part is a process on loopback that can be killed and started again. Knows the files of
`deploy/`. Does not know what is asked.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from ragboost.errors import RagBoostError
from scripts.ports import free_port
from scripts.processes import exit_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
BALANCERS = {"nginx": ("nginx.conf", "-c"), "haproxy": ("haproxy.cfg", "-f")}
REPLICA_HEADER = "x-replica"
_START_S = 240.0
_REDIS = ("redis-server", "valkey-server")


class ClusterProcess:
    """One part of the cluster.

    Args:
        name: in messages, and of its log.
        command: program and arguments.
        port: on which it listens.
        folder: for its log.
        env: further environment variables.
        path: answers 200 when the part is ready; empty: listening is enough.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        path: str = "",
    ) -> None:
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command
        self._log = folder / f"{name}.log"
        self._env = env or {}
        self._path = path
        self._folder = folder

    def start(self) -> None:
        """Start the process, without waiting for it."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self._env},
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until it is ready.

        Raises:
            RagBoostError: it ended, or did not get ready.
        """
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            assert self.process is not None, "never started"
            if self.process.poll() is not None or time.monotonic() > deadline:
                end = self._log.read_text("utf-8", "replace")[-2000:]
                raise RagBoostError(f"{self.name} did not start:\n{end}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Ask the process to end, and wait."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _is_ready(self) -> bool:
        try:
            if self._path:
                return httpx.get(self.url + self._path, timeout=10).status_code == 200
            with socket.create_connection(("127.0.0.1", self.port), timeout=10):
                return True
        except (OSError, httpx.HTTPError):
            return False


class Cluster:
    """Two engines, two replicas, Redis and a balancer.

    Args:
        engine: returns the command of an engine for its number and port.
        balancer: one of `BALANCERS`, or None for no balancer.
        engine_env: further environment variables of the engines.
        replica_env: likewise of the replicas.

    Attributes:
        urls: where clients send requests: the balancer, or the replicas in turn.

    Raises:
        RagBoostError: there is no Redis server here.
    """

    def __init__(
        self,
        engine: Callable[[int, int], Sequence[str]],
        *,
        balancer: str | None,
        engine_env: Mapping[str, str] | None = None,
        replica_env: Mapping[str, str] | None = None,
    ) -> None:
        redis = next(filter(None, map(shutil.which, _REDIS)), None)
        if redis is None:
            raise RagBoostError(
                "the cluster needs redis-server or valkey-server: apt-get install redis-server"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="ragboost-cluster-"))
        folder, python = self._folder, [sys.executable, "-m", "ragboost"]
        ports = [free_port() for _ in range(6)]
        self.engines = [
            ClusterProcess(
                f"engine-{at}",
                engine(at, port),
                port,
                folder,
                env=engine_env,
                path="/v1/models",
            )
            for at, port in enumerate(ports[:2])
        ]
        options = ["--port", str(ports[2]), "--bind", "127.0.0.1", "--save", ""]
        options += ["--appendonly", "yes", "--dir", str(folder)]
        self.redis = ClusterProcess("redis", [redis, *options], ports[2], folder)
        env = {
            "RAGBOOST_SESSION__STORE": "redis",
            "RAGBOOST_SESSION__URL": f"redis://127.0.0.1:{ports[2]}",
            **(replica_env or {}),
        }
        backends = [f"--backend={each.url}" for each in self.engines]
        self.replicas = [
            ClusterProcess(
                f"replica-{at}",
                [*python, "serve", "--port", str(port), *backends],
                port,
                folder,
                env=env,
                path="/ready",
            )
            for at, port in enumerate(ports[3:5])
        ]
        self.balancer = None
        self.urls = [each.url for each in self.replicas]
        if balancer is not None:
            name, flag = BALANCERS[balancer]
            path = folder / name
            replica_ports = [each.port for each in self.replicas]
            path.write_text(balancer_config(balancer, replica_ports, ports[5], folder), "utf-8")
            program = shutil.which(balancer) or balancer
            self.balancer = ClusterProcess(balancer, [program, flag, str(path)], ports[5], folder)
            self.urls = [self.balancer.url]

    @property
    def processes(self) -> list[ClusterProcess]:
        """All parts, in the order in which they start."""
        parts = [*self.engines, self.redis, *self.replicas]
        return parts if self.balancer is None else [*parts, self.balancer]

    def __enter__(self) -> Self:
        exit_on_sigterm()
        try:
            for group in ([*self.engines, self.redis], self.replicas, self.processes[5:]):
                for each in group:
                    each.start()
                for each in group:
                    each.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in reversed(self.processes):
            each.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def installed_balancer() -> str | None:
    """Return the first balancer that is installed here."""
    return next((name for name in BALANCERS if shutil.which(name)), None)


def balancer_config(program: str, ports: Sequence[int], port: int, folder: Path) -> str:
    """Return a balancer's file of `deploy/` for processes on this machine.

    Addresses and folders are replaced, and responses name their replica in `x-replica`.

    Args:
        program: one of `BALANCERS`.
        ports: of the replicas.
        port: of the balancer.
        folder: for its files.
    """
    text = (ROOT / "deploy" / BALANCERS[program][0]).read_text("utf-8")
    text = text.replace("/tmp/", f"{folder}/")
    text = text.replace("worker_processes", "daemon off;\nmaster_process off;\nworker_processes")
    text = text.replace(
        "location / {", f"location / {{ add_header {REPLICA_HEADER} $upstream_addr;"
    )
    text = text.replace(
        "balance hash", f"http-response set-header {REPLICA_HEADER} %s\n    balance hash"
    )
    for number, each in enumerate(ports):
        text = text.replace(f" ragboost-{number}:8080", f" 127.0.0.1:{each}")
    return re.sub(
        r"^( *(?:listen|bind)) \S*?8080", rf"\1 127.0.0.1:{port}", text, flags=re.MULTILINE
    )
