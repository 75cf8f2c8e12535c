"""Models named as on a model hub: downloaded once, read from the hub's cache, or refused in one
sentence."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.ports import free_port
from tests.eventually import DEADLINE_S
from tests.test_examples import ENV, running

pytest.importorskip("huggingface_hub", reason="needs the extra engine")

NAME = Path("harbour/tiny-llama")
CONFIG = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickled weights",
    "modeling_tiny.py": b"raise SystemExit",
    "onnx/model.safetensors": b"of another format",
}
LOADED = {"config.json", "model.safetensors", "tokenizer.json"}


class FakeHub:
    """A model hub with one model, on loopback.

    Attributes:
        files: the model's files by name.
        listed: names of the files that it says it has.
        status: what every request is answered with, or 200.
        is_hanging: no request is answered.
        downloaded: names of the files that were sent.
    """

    def __init__(self) -> None:
        self.files, self.status, self.is_hanging = dict(FILES), 200, False
        self.downloaded: list[str] = []
        self.listed = list(FILES)
        ends = self._ends = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(is_head=True)

            def do_GET(self) -> None:
                self._answer(is_head=False)

            def _answer(self, *, is_head: bool) -> None:
                if hub.is_hanging:
                    ends.wait(DEADLINE_S)
                    return
                path, name = self.path.partition("?")[0], str(NAME)
                file = path.partition(f"/{name}/resolve/")[2].partition("/")[2]
                status, body = hub.status, hub.files.get(file, b"")
                if path.startswith(f"/api/models/{name}"):
                    listed = [{"rfilename": name} for name in hub.listed]
                    body = json.dumps({"id": name, "sha": hub.commit, "siblings": listed}).encode()
                elif file not in hub.files:
                    status = 404
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.send_header("x-repo-commit", hub.commit)
                self.send_header("etag", f'"{hashlib.sha256(body).hexdigest()}"')
                self.end_headers()
                if not is_head:
                    hub.downloaded += [file] if file else []
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def stop(self) -> None:
        self._ends.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    yield hub
    hub.stop()


def _env(hub: FakeHub, home: Path, **more: str) -> dict[str, str]:
    fields = {"HF_HOME": str(home), "HF_ENDPOINT": hub.url, "HF_HUB_ETAG_TIMEOUT": "1"}
    return {**os.environ, **fields, **more}


def _run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ragboost", *arguments]
    return subprocess.run(
        command, cwd=env["HF_HOME"], env=env, capture_output=True, text=True, check=False
    )


def _find(env: dict[str, str]) -> str:
    """Return what `find_model` does in a new process: the directory, or its error."""
    code = (
        "import sys; from pathlib import Path; from ragboost.errors import ConfigError\n"
        "from ragboost.config.model_directory import find_model, model_name\n"
        "try: path = find_model(Path(sys.argv[1])); print(model_name(path), path, sep='\\n')\n"
        "except ConfigError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(NAME)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _find_one(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Find a model of which one file is needed, in a new process."""
    code = (
        "import sys; from pathlib import Path; from ragboost.errors import ConfigError\n"
        "from ragboost.config.model_directory import find_model\n"
        "try: print(find_model(Path(sys.argv[1]), only='config.json'))\n"
        "except ConfigError as error: sys.exit(f'ragboost: {error}')"
    )
    command = [sys.executable, "-c", code, str(NAME)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_what_a_model_is_loaded_from_is_downloaded_once_and_code_and_pickles_never(
    hub: FakeHub, tmp_path: Path
) -> None:
    env = _env(hub, tmp_path)

    name, directory = _find(env).splitlines()

    assert name == str(NAME)
    assert {path.name for path in Path(directory).iterdir()} == LOADED == set(hub.downloaded)
    assert len(hub.downloaded) == len(LOADED)
    assert _find(env) == f"{name}\n{directory}"
    assert len(hub.downloaded) == len(LOADED)
    hub.files["config.json"] = b"{}"  # another commit
    assert _find(env) != f"{name}\n{directory}"


def test_a_download_that_breaks_off_leaves_the_former_version_in_use(
    hub: FakeHub, tmp_path: Path
) -> None:
    env = _env(hub, tmp_path)
    before = _find(env)
    hub.files |= {"config.json": b"{}", "model.safetensors": b"new"}
    hub.listed.append("merges.txt")  # which it does not give

    assert _find(env) == before


def test_a_model_without_safetensors_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.listed.remove("model.safetensors")
    said = _find(_env(hub, tmp_path))
    assert said.count("\n") == 0
    assert "it has no model.safetensors" in said


def test_only_the_one_file_that_is_needed_is_taken(hub: FakeHub, tmp_path: Path) -> None:
    env = _env(hub, tmp_path)

    done = _find_one(env)

    assert (Path(done.stdout.strip()) / "config.json").is_file()
    assert hub.downloaded == ["config.json"]
    assert "does not give" in _find({**env, "HF_HUB_OFFLINE": "1"})  # the weights are not there


@pytest.mark.parametrize("trouble", [401, 404, 500, "hangs", "refuses", "offline"])
def test_a_hub_that_gives_nothing_is_one_sentence_or_the_cache(
    hub: FakeHub, tmp_path: Path, trouble: int | str
) -> None:
    (tmp_path / "empty").mkdir()
    assert _find_one(_env(hub, tmp_path)).returncode == 0
    hub.is_hanging = trouble == "hangs"
    hub.status = trouble if isinstance(trouble, int) else 200
    more = {"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"} if trouble == "refuses" else {}
    more |= {"HF_HUB_OFFLINE": "1"} if trouble == "offline" else {}

    cached = _find_one(_env(hub, tmp_path, **more))
    done = _find_one(_env(hub, tmp_path / "empty", **more))

    assert (cached.returncode, cached.stderr) == (0, "")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"ragboost: {NAME} is no directory, and ")
    assert "or copy the model and name its directory" in done.stderr


@pytest.mark.parametrize("module", ["language.chunks", "language.order_accuracy"])
def test_a_benchmark_says_it_in_one_sentence(hub: FakeHub, tmp_path: Path, module: str) -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    command = [sys.executable, "-m", f"benchmarks.{module}", "--model", "harbour/unknown"]
    done = subprocess.run(
        [*command, "--data", "."],
        env=_env(hub, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "error: argument --model: harbour/unknown is no directory, and" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A hub's cache with a real model, laid out as transformers and vLLM leave it."""
    pytest.importorskip("torch", reason="needs the extra engine")
    from ragboost.engine.builtin import build_tokenizer
    from tests.chunk_cache.families import build_model

    folder = tmp_path / "hub" / f"models--{str(NAME).replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    build_model("llama", vocab_size=4096).save_pretrained(snapshot)
    build_tokenizer().save_pretrained(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(snapshot.name)
    return tmp_path


PROMPTS = [
    {
        "question": f"What is the dog of {name} called?",
        "documents": [f"The dog of {name} is called {dog}.", f"The harbour of {name} is old."],
        "answers": [dog],
    }
    for name, dog in zip(
        ("Ann", "Ben", "Cid", "Dee"), ("Odin", "Pepper", "Hazel", "Mocha"), strict=True
    )
]


@pytest.mark.parametrize("command", ["eval-reuse", "calibrate"])
def test_commands_read_a_cached_model_by_its_name(cached: Path, command: str) -> None:
    (cached / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    env = {**os.environ, "HF_HOME": str(cached), "HF_HUB_OFFLINE": "1"}
    options = ["--data", "prompts.jsonl", "--policy", "anchored", "--ratio", "0.15", "--json"]

    done = _run(env, command, "--model", str(NAME), *options)

    assert done.returncode == 0, done.stderr
    if command == "calibrate":
        written = json.loads((cached / "calibration.json").read_text())
        assert written["expected"]["model"] == str(NAME)


@pytest.mark.parametrize("command", [["engine"], ["serve", "--embedded"]])
def test_a_cached_model_is_served_under_its_name_on_the_hub(
    cached: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.delitem(ENV, "RAGBOOST_ENGINE__SERVED_MODEL_NAME")
    monkeypatch.setitem(ENV, "HF_HOME", str(cached))
    monkeypatch.setitem(ENV, "HF_HUB_OFFLINE", "1")
    with running(*command, "--model", str(NAME)) as url:
        models = httpx.get(f"{url}/v1/models").json()

    assert [model["id"] for model in models["data"]] == [str(NAME)]
