"""Start, await and stop the servers that benchmarks run as processes, all on loopback."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY_S = 90
KEY = "sk-benchmark"


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    cpu: int | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process, pinned to one CPU if it is given."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if cpu is not None:
        os.sched_setaffinity(process.pid, {cpu})
    return process


def listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a server completes a request; return False if it exits or takes READY_S."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            if _answers(port):
                return True
        time.sleep(0.2)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a server and wait for its exit."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def first_cpu() -> int:
    """Return the CPU of the servers."""
    return min(os.sched_getaffinity(0))


def last_cpu() -> int:
    """Return the CPU of the backend and the clients."""
    return max(os.sched_getaffinity(0))


def _answers(port: int) -> bool:
    body = b'{"model":"m","messages":[{"role":"user","content":"ready?"}]}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
        "content-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        return b" 200 " in connection.recv(4096)[:20]
