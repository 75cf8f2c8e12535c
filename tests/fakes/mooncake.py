"""A real Mooncake Store on loopback: its master, and a pool of memory that outlives writers."""

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from scripts.ports import free_port
from tests.eventually import DEADLINE_S, eventually


def missing() -> str | None:
    """Return why no store can be started here; None if one can."""
    if _program("mooncake_master") is None:
        return "needs mooncake-transfer-engine-non-cuda"
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        return f"Mooncake's library cannot be loaded (libibverbs1, librdmacm1): {error}"
    return None


def _program(name: str) -> str | None:
    found = importlib.util.find_spec("mooncake")
    for folder in [] if found is None else found.submodule_search_locations or []:
        path = Path(folder, name)
        if path.is_file():
            path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    return shutil.which(name)


class MooncakeServer:
    """The store; a context manager that starts and kills it.

    Args:
        size: of the pool; beyond it the store evicts.

    Attributes:
        url: of its master.
    """

    def __init__(self, *, size: str = "256 MB") -> None:
        self._size = size
        self._folder = Path(tempfile.mkdtemp(prefix="mooncake-"))
        self._ports = [free_port() for _ in range(3)]
        self.url = f"mooncake://127.0.0.1:{self._ports[0]}"
        self._master: subprocess.Popen[bytes] | None = None
        self._pool: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_pool()
        self.kill_master()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start the master, then the pool, and wait until both answer."""
        master, metrics, pool = self._ports
        self._master = self._run(
            "mooncake_master",
            "--rpc_address=127.0.0.1",
            f"--rpc_port={master}",
            f"--metrics_port={metrics}",
        )
        eventually(lambda: _is_listening(master))
        self._pool = self._run(
            "mooncake_client",
            "--host=127.0.0.1",
            f"--port={pool}",
            f"--master_server_address=127.0.0.1:{master}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            f"--global_segment_size={self._size}",
        )
        eventually(lambda: _is_listening(pool))

    def kill_pool(self) -> None:
        """Kill the pool: what it held is lost."""
        _kill(self._pool)
        self._pool = None

    def kill_master(self) -> None:
        """Kill the master, which knows where everything is."""
        _kill(self._master)
        self._master = None

    def _run(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        path = _program(program)
        assert path is not None, "see missing()"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # A session gets its own share of a busy processor, as each engine's does.
        return subprocess.Popen([path, *options], cwd=self._folder, start_new_session=True, **quiet)


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait(DEADLINE_S)


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
