"""Stand in for the programs of the pages' shell blocks, so that the blocks run as pasted.

`ragboost` and `python` are the real ones; servers that `ragboost` starts run in the background, on
the test's port. `vllm`, `docker`, `pip` and others only have their arguments checked: JSON is JSON,
files exist, and an extra is one of ours.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
CHECKED = ("vllm", "docker", "helm", "kubectl", "pip", "make")
SERVERS = ("serve", "engine")
# Commands that need a model, an engine with chunk reuse, or recorded traffic.
NOT_RUN = ("precompute", "eval-reuse", "calibrate", "chunks", "bench")


def install(folder: Path, *, port: int, proxy: str, backend: str) -> dict[str, str]:
    """Make the folder of the servers' ids, and return the environment of the programs."""
    folder.mkdir()
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PAGE_FOLDER": str(folder),
        "PAGE_PORT": str(port),
        "PAGE_PROXY": proxy,
        "RAGBOOST_BACKEND__URL": backend,
        "RAGBOOST_ENGINE__MODEL": "ragboost-tiny",
        "OMP_NUM_THREADS": "1",
    }


def functions() -> str:
    """Return the programs as functions of a shell, which no activated environment hides."""
    names = (*CHECKED, "ragboost", "python")
    lines = [
        f'{name}() {{ "{sys.executable}" -m tests.fakes.programs {name} "$@"; }}' for name in names
    ]
    return "\n".join([*lines, 'source() { test "$1" = .venv/bin/activate; }'])


def stop(folder: Path) -> None:
    """End the servers that were started."""
    for path in folder.glob("*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(path.stem), signal.SIGTERM)


def check(name: str, arguments: list[str]) -> None:
    """Raise if an argument is no JSON, names no file, or asks for an extra that is not ours."""
    for argument in arguments:
        if argument.startswith("{") and '"' in argument:
            json.loads(argument)
        elif re.match(r"(deploy|examples|docs)/", argument):
            assert (ROOT / argument).exists(), argument
    if name == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"\[([\w,-]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= set(known["optional-dependencies"]), extras


def start(arguments: list[str]) -> None:
    """Start a server of ours in the background, and wait until it answers."""
    port = os.environ["PAGE_PORT"]
    while "--model" in arguments:  # no language model is at hand: the built-in one is served
        del arguments[(at := arguments.index("--model")) : at + 2]
    if "--port" in arguments:
        del arguments[(at := arguments.index("--port")) : at + 2]
    command = [sys.executable, "-m", "ragboost", *arguments, "--port", port]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet)
    Path(os.environ["PAGE_FOLDER"], f"{server.pid}.pid").touch()
    while server.poll() is None:
        try:
            urlopen(f"http://127.0.0.1:{port}/health").close()
            return
        except URLError:
            time.sleep(0.1)
    sys.exit(f"the server exited: {arguments}")


def main(name: str, *arguments: str) -> None:
    if name in CHECKED or arguments[:2] == ("-m", "sglang.launch_server"):
        check(name, list(arguments))
    elif name == "ragboost" and arguments[0] in SERVERS:
        start(list(arguments))
    elif name == "ragboost":
        # With --help the flags are checked, and nothing runs.
        last = ["--help"] if arguments[0] in NOT_RUN else []
        last = ["--yes"] if arguments[0] == "eval-order" else last  # it asks at a terminal
        os.execv(sys.executable, [sys.executable, "-m", "ragboost", *arguments, *last])
    else:
        last = [os.environ["PAGE_PROXY"] + "/v1"] if arguments[0].startswith("examples/") else []
        last = ["--help"] if "scripts.finetune_dependency" in arguments else last
        os.execv(sys.executable, [sys.executable, *arguments, *last])


if __name__ == "__main__":
    main(*sys.argv[1:])
