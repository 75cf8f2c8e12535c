"""Start vLLM, SGLang or the embedded engine on the CPU, for tests and benchmarks.

vLLM and SGLang run in environments of their own, created by `make engines`. All traffic is on
loopback, all files are in a temporary folder.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil

from ragboost.cache_sync.discovery import EventSource
from ragboost.chunk_cache.sglang.flags import sglang_flags
from ragboost.chunk_cache.vllm.flags import vllm_flags
from scripts.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "engines"
READY_S = 400
_FILLS = {"fill": "always"}  # whatever the times of small models on a busy machine

Kind = Literal["vllm", "sglang", "embedded"]
Shape = Literal["tiny", "wide", "deep"]


def venv(kind: Kind) -> Path:
    """Return the folder of the engine's virtual environment; `VLLM_VENV` names another."""
    return ROOT / os.environ.get(f"{kind.upper()}_VENV", f".venv-{kind}")


def missing(kind: Kind) -> str | None:
    """Return the reason why the engine cannot be started, or None if it can."""
    if kind == "embedded" or (venv(kind) / ".installed").exists():
        return None
    return f"{kind} is not installed in {venv(kind).name}: run `make engines`"


def python(kind: Kind) -> list[str]:
    """Return the command of the engine's interpreter."""
    if kind == "embedded":
        return [sys.executable]
    return [str(venv(kind) / "bin" / "python")]


def environment(kind: Kind, **extra: str) -> dict[str, str]:
    """Return environment variables that keep the engine on the CPU and offline."""
    paths = [str(ROOT), *([str(SCRIPTS / "sglang_cpu")] if kind == "sglang" else [])]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    names = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_SERVER_DEV_MODE": "1",  # enables /reset_prefix_cache
        "SGLANG_USE_CPU_ENGINE": "1",
        "RAGBOOST_ENGINE__MODEL": "ragboost-tiny",
    }
    return {**os.environ, **names, **extra}


def bind_ranks(count: int) -> dict[str, str]:
    """Return the variable that gives each rank of SGLang on the CPU a core."""
    cores = sorted(os.sched_getaffinity(0))
    bound = [str(cores[rank % len(cores)]) for rank in range(count)]
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(bound)}


def made_model(kind: Kind, shape: Shape) -> Path:
    """Return the folder of a small random model; create it if missing or outdated."""
    model, script = ROOT / "build" / f"{shape}-llama", SCRIPTS / "make_tiny_model.py"
    weights = model / "model.safetensors"
    if not weights.exists() or weights.stat().st_mtime < script.stat().st_mtime:
        model.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.parent) as folder:
            command = [*python(kind), str(script), folder, shape]
            subprocess.run(command, env=environment(kind), check=True, capture_output=True)
            shutil.copytree(folder, model, dirs_exist_ok=True)
    return model


def fast_dtype() -> str:
    """Return a dtype for which this processor has instructions; others take 28 times as long."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


class EngineServer:
    """HTTP server of a real engine; a context manager that starts and stops it.

    Args:
        kind: engine to start.
        cache_tokens: size of its prefix cache; small to force evictions.
        block_size: tokens per block; vLLM on a CPU takes multiples of 32.
        events: `zmq` for KV events, `hook` for RAGBoost's plug-in, `off`.
        report_url: proxy that the plug-in reports to.
        max_model_len: maximum tokens of prompt and completion together.
        shape: model that vLLM and SGLang serve, as in scripts/engines/make_tiny_model.py.
        chunks: settings of chunk reuse in vLLM or SGLang; None: the engine as it is.
        dtype: of vLLM's and SGLang's model; None: what this processor multiplies fast.
        model: folder of vLLM's model, instead of `shape`.
        workers: processes that a model of vLLM or SGLang is split over.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        cache_tokens: int = 8192,
        block_size: int = 32,
        events: Literal["zmq", "hook", "off"] = "zmq",
        report_url: str | None = None,
        max_model_len: int = 8192,
        shape: Shape = "tiny",
        chunks: Mapping[str, Any] | None = None,
        dtype: str | None = None,
        model: Path | None = None,
        workers: int = 1,
    ) -> None:
        self.shape, self.model, self.workers = shape, model, workers
        self.chunks, self.dtype = chunks, dtype or fast_dtype()
        self.max_model_len = max_model_len
        self.kind = kind
        self.cache_tokens = cache_tokens
        self.block_size = block_size
        self.events = events
        self.report_url = report_url
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = Path(tempfile.mkdtemp(prefix="engine-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.source = self._source()

    def __enter__(self) -> "EngineServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it is ready.

        Raises:
            RuntimeError: the server exited, or was not ready after READY_S seconds.
        """
        extra = {"RAGBOOST_ENGINE_HOOKS__REPORT_STREAM": "real"}
        if self.events == "hook" and self.report_url:
            extra["RAGBOOST_ENGINE_HOOKS__REPORT_URL"] = self.report_url
        if self.kind == "sglang" and self.workers > 1:
            extra |= bind_ranks(self.workers)
        command = {"vllm": self._vllm, "sglang": self._sglang, "embedded": self._embedded}[
            self.kind
        ]()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment(self.kind, **extra),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"{self.kind} did not start:\n{self.log()[-4000:]}")
            time.sleep(0.5)

    def stop(self, *, at_once: bool = False) -> None:
        """Terminate the server's process group, which holds no other process.

        Args:
            at_once: kill without SIGTERM first.
        """
        process, self._process = self._process, None
        if process is None:
            return
        for number in ([] if at_once else [signal.SIGTERM]) + [signal.SIGKILL]:
            try:
                os.killpg(process.pid, number)
                process.wait(15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cpu_seconds(self) -> float:
        """Return the processor time that the server's processes have taken so far, which other
        load does not change."""
        if self._process is None:
            return 0.0
        server = psutil.Process(self._process.pid)
        seconds = 0.0
        for each in [server, *server.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # a child that ends meanwhile
                times = each.cpu_times()
                seconds += times.user + times.system
        return seconds

    def log(self) -> str:
        """Return the server's output so far."""
        return (self._folder / "log").read_text(errors="replace")

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        """POST a JSON object; return the response's JSON, or its text."""
        data = json.dumps(body).encode() if body is not None else b""
        head = {"content-type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, data=data, headers=head)
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def get(self, path: str) -> Any:
        """GET a path; return the response's JSON, or its text."""
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            text = response.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def complete(self, token_ids: list[int], request_id: str, *, max_tokens: int = 1) -> Any:
        """Complete a prompt given as token ids and return the response."""
        return self.begin(token_ids, request_id, max_tokens=max_tokens)()

    def begin(
        self, token_ids: list[int], request_id: str, *, max_tokens: int = 1
    ) -> Callable[[], Any]:
        """Send the request of `complete`; return a function that waits for the response."""
        body = {
            "model": "tiny",
            "prompt": token_ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "session_id": request_id,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        head = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), head)

        def read_response() -> Any:
            with contextlib.closing(connection):
                response = connection.getresponse()
                text = response.read().decode()
                if response.status != 200:
                    raise RuntimeError(f"{self.kind} returned {response.status}: {text[:200]}")
                return json.loads(text)

        return read_response

    def clear_cache(self) -> None:
        """Clear the prefix cache, once no request holds a part of it.

        Raises:
            RuntimeError: requests hold a part for a minute.
        """
        path = "/flush_cache?timeout=60" if self.kind == "sglang" else "/reset_prefix_cache"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            told = self.post(path)
            if not isinstance(told, dict) or told.get("success", True):
                return
            time.sleep(0.05)
        raise RuntimeError("requests held a part of the prefix cache for a minute")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def _source(self) -> EventSource:
        name = f"{self.kind}/0"
        if self.kind != "sglang":  # vLLM binds ipc://, and connects to tcp://127.0.0.1
            endpoint = f"ipc://{self._folder}/pub"
            return EventSource(name, endpoint, replay_endpoint=f"{endpoint}-replay")
        ports = free_port(), free_port()
        return EventSource(
            name,
            f"tcp://127.0.0.1:{ports[0]}",
            replay_endpoint=f"tcp://127.0.0.1:{ports[1]}",
        )

    def _vllm(self) -> list[str]:
        model = self.model or made_model("vllm", self.shape)
        command = [str(venv("vllm") / "bin" / "vllm"), "serve", str(model)]
        flags: dict[str, object] = {
            "--served-model-name": "tiny",
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": self.dtype,
            "--max-model-len": min(self.max_model_len, self.cache_tokens),
            "--max-num-seqs": 8,
            "--tensor-parallel-size": self.workers,
            "--max-num-batched-tokens": 2048,
            "--block-size": self.block_size,
            # vLLM reserves block 0.
            "--num-gpu-blocks-override": self.cache_tokens // self.block_size + 1,
        }
        if self.events == "zmq":
            flags["--kv-events-config"] = json.dumps(
                {"enable_kv_cache_events": True, "publisher": "zmq", **self._addresses()}
            )
        chunks = [] if self.chunks is None else vllm_flags({**_FILLS, **self.chunks})
        command += ["--enforce-eager", "--enable-prompt-tokens-details", *chunks]
        return [*command, *_flat(flags)]

    def _sglang(self) -> list[str]:
        command = [*python("sglang"), "-W", "ignore", "-m", "sglang.launch_server"]
        command += ["--disable-overlap-schedule", "--disable-cuda-graph", "--skip-server-warmup"]
        command += ["--enable-metrics", "--enable-cache-report", "--sleep-on-idle"]
        flags: dict[str, object] = {
            "--model-path": made_model("sglang", self.shape),
            "--served-model-name": "tiny",
            "--host": "127.0.0.1",
            "--port": self.port,
            "--device": "cpu",
            "--dtype": self.dtype,
            "--tp-size": self.workers,
            "--attention-backend": "torch_native",
            "--sampling-backend": "pytorch",
            "--grammar-backend": "none",
            "--context-length": self.max_model_len,
            "--max-running-requests": 8,
            "--mem-fraction-static": 0.3,
            "--page-size": self.block_size,
            "--max-total-tokens": self.cache_tokens,
        }
        if self.events == "zmq":
            config = {"publisher": "zmq", "bind": True, **self._addresses()}
            flags["--kv-events-config"] = json.dumps(config)
        elif self.events == "hook":
            config = {"publisher": "ragboost", "endpoint": self.report_url}
            flags["--kv-events-config"] = json.dumps(config)
        chunks = [] if self.chunks is None else sglang_flags({**_FILLS, **self.chunks})
        return [*command, *chunks, *_flat(flags)]

    def _embedded(self) -> list[str]:
        flags: dict[str, object] = {
            "--host": "127.0.0.1",
            "--port": self.port,
            "--served-model-name": "tiny",
            "--capacity-tokens": self.cache_tokens,
            "--block-size": self.block_size,
        }
        if self.events == "zmq":
            flags["--kv-events-endpoint"] = self.source.endpoint
        return [sys.executable, "-m", "ragboost", "engine", *_flat(flags)]

    def _addresses(self) -> dict[str, str | None]:
        return {
            "endpoint": self.source.endpoint,
            "replay_endpoint": self.source.replay_endpoint,
            "topic": "kv@tiny",
        }


def _flat(flags: Mapping[str, object]) -> list[str]:
    return [text for name, value in flags.items() for text in (name, str(value))]
