"""A real Redis or Valkey server on a socket of its own, started by a test."""

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.eventually import DEADLINE_S, eventually

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """The server; keeps nothing on disk.

    Args:
        options: further command-line options.

    Attributes:
        url: of its Unix socket.
        path: of that socket.
        folder: its working directory.
    """

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))  # short, as socket paths must be
        self.path = self.folder / "s"
        self.url = f"unix://{self.path}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        """Start the server, empty, and wait until it listens."""
        assert PROGRAM is not None
        options = ["--unixsocket", str(self.path), "--save", "", "--appendonly", "no"]
        if "--tls-port" not in self._options:
            options += ["--port", "0"]
        self._process = subprocess.Popen(
            [PROGRAM, *options, *self._options],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its own share of a busy processor, as each engine's
        )
        eventually(self._is_listening, ignoring=(OSError,))

    def _is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.path))
        return True

    def client(self) -> Any:
        """Make a blocking client, to be used in a `with` statement."""
        import redis  # of the extra

        return redis.Redis(unix_socket_path=str(self.path))

    def kill(self) -> None:
        """Kill the server; what it holds is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(DEADLINE_S)
            self.path.unlink(missing_ok=True)
