"""Start the servers that `benchmarks.proxy` compares: RAGBoost, its peers, and one mock backend.

Peers are installed in environments of their own by `scripts/peers/setup.sh`; a peer that is missing
or does not start is skipped. All traffic is on loopback. Every server is one process tree pinned to
the first CPU; the backend and the clients share the last.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import psutil

from benchmarks.processes import KEY, ROOT, first_cpu, last_cpu, listens, spawn, stop
from scripts.ports import free_port

PEERS = ROOT / ".venv-peers"
# How requests carry documents: in tags, in a `ragboost` object, joined by blank lines; or none.
Kind = Literal["tags", "object", "joined", "none"]
_OFFLINE = {
    "LITELLM_MASTER_KEY": KEY,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Target:
    """A running server to measure."""

    name: str
    process: subprocess.Popen[bytes]  # root of its process tree
    port: int
    kind: Kind = "tags"

    def cpu_ns(self) -> int:
        """Return the processor time of the process tree in nanoseconds, over all threads."""
        root = psutil.Process(self.process.pid)
        return sum(map(_cpu_ns, [root, *root.children(recursive=True)]))


@dataclass(frozen=True)
class Peer:
    """Command line of a server."""

    program: Path | None  # None: not installed
    command: Callable[[int, str, Path], Sequence[str]]  # port, backend's URL, folder of its files

    def start(self, port: int, backend: str, folder: Path) -> subprocess.Popen[bytes]:
        """Start the server without waiting until it listens."""
        command = [str(self.program), *self.command(port, backend, folder)]
        return spawn(command, log=folder / "log", cpu=first_cpu(), env=_OFFLINE)


def known_peers(folder: Path = PEERS) -> dict[str, Peer]:
    """Return all servers to compare, by name."""
    return {
        "ragboost": Peer(Path(sys.executable), _ragboost),
        "nginx": Peer(_nginx_program(folder), _nginx),
        "sglang-router": Peer(_installed(folder, "sglang-router", "sglang-router"), _sglang_router),
        "vllm-router": Peer(_installed(folder, "vllm-router", "vllm-router"), _vllm_router),
        "contextpilot": Peer(_installed(folder, "contextpilot", "python"), _contextpilot),
        "litellm": Peer(_installed(folder, "litellm", "litellm"), _litellm),
    }


@contextlib.contextmanager
def running(names: Sequence[str], *, log: Callable[[str], None]) -> Iterator[list[Target]]:
    """Start the backend and the servers; stop all of them on exit."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.proxy.mock_backend", str(port)]
        backend = spawn(command, log=Path(os.devnull), cpu=last_cpu())
        stack.callback(stop, backend)
        if not listens(backend, port):
            raise SystemExit("the mock backend did not start")
        targets = [Target("direct", backend, port)]
        peers = known_peers()
        for name in names:
            log(f"starting {name}")
            target = _start(stack, name, peers[name], f"http://127.0.0.1:{port}")
            if target is None:
                log(f"skipping {name}: not installed, or did not start")
            else:
                targets.append(target)
        ours = next((each for each in targets if each.name == "ragboost"), None)
        if ours is not None:
            targets += [
                Target(f"ragboost-{kind}", ours.process, ours.port, kind)
                for kind in get_args(Kind)[1:]
            ]
        yield targets


def _start(stack: contextlib.ExitStack, name: str, peer: Peer, backend: str) -> Target | None:
    if peer.program is None or not peer.program.exists():
        return None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-")))
    port = free_port()
    process = peer.start(port, backend, folder)
    stack.callback(stop, process)
    return Target(name, process, port) if listens(process, port) else None


def _cpu_ns(process: psutil.Process) -> int:
    """Return the processor time of one process; ticks of `cpu_times` are too coarse."""
    total = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total


def _installed(folder: Path, peer: str, program: str) -> Path | None:
    return folder / peer / "bin" / program if (folder / peer / ".installed").exists() else None


def _nginx_program(folder: Path) -> Path | None:
    found = shutil.which("nginx")
    return Path(found) if found else folder / "nginx" / "usr" / "sbin" / "nginx"


def _ragboost(port: int, backend: str, _folder: Path) -> Sequence[str]:
    return ["-m", "ragboost", "serve", "--backend", backend, "--port", str(port)]


def _nginx(port: int, backend: str, folder: Path) -> Sequence[str]:
    config = folder / "nginx.conf"
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in paths)
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error;"
        "events { worker_connections 4096; }"
        f"http {{ access_log off; {temporary} client_max_body_size 32m; client_body_buffer_size 1m;"
        f"upstream backend {{ server {backend.removeprefix('http://')}; keepalive 256; }}"
        f"server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;"
        "location / { proxy_pass http://backend; proxy_http_version 1.1; proxy_buffering off;"
        'proxy_set_header Connection ""; } } }'
    )
    return ["-p", str(folder), "-c", str(config), "-e", str(folder / "error")]


def _sglang_router(port: int, backend: str, folder: Path) -> Sequence[str]:
    return ["launch", *_router(port, backend, folder)]


def _vllm_router(port: int, backend: str, folder: Path) -> Sequence[str]:
    return _router(port, backend, folder)


def _router(port: int, backend: str, _folder: Path) -> Sequence[str]:
    own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    others = ["--prometheus-host", "127.0.0.1", "--log-level", "error"]
    return [*own, *others, "--worker-urls", backend, "--policy", "cache_aware"]


def _contextpilot(port: int, backend: str, _folder: Path) -> Sequence[str]:
    own = ["-m", "contextpilot.server.http_server", "--host", "127.0.0.1", "--port", str(port)]
    return [*own, "--infer-api-url", backend, "--log-level", "error"]


def _litellm(port: int, backend: str, folder: Path) -> Sequence[str]:
    config = folder / "config.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: openai/m\n      api_base: {backend}/v1\n      api_key: none\n"
        "litellm_settings:\n  telemetry: false\n"
    )
    own = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return ["--config", str(config), "--telemetry", "False", *own]
