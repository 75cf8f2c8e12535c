"""Each extra is absent with a helpful error, and present with its names, in a fresh process."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.environments import needs, own_environment

ROOT = Path(__file__).parents[1]
FOR_DEVELOPERS = {"demo", "deploy", "dev", "docs", "models", "test"}
WITHOUT_ERROR = {"compression"}  # clients get a 415: see test_encoded_bodies.py
NOISY = {"litellm", "ray"}  # they emit warnings of their own


class Use(NamedTuple):
    """A line that uses an extra, the package that is missing, the extra that brings it."""

    line: str
    package: str
    extra: str


EXTRAS = [
    Use(
        "from ragboost.config import Settings\n"
        "from ragboost.proxy.sessions import make_store\n"
        "make_store(Settings(session={'store': 'redis', 'url': 'redis://127.0.0.1:1'}))",
        "redis",
        "redis",
    ),
    Use("import ragboost.engine", "torch", "engine"),
    Use(
        "import ragboost.integrations.retrieval as r; r.DenseRetriever([], list)",
        "faiss",
        "retrieval",
    ),
    Use(
        "from ragboost.chunk_cache.store.remote import join_remote\n"
        "assert join_remote('mooncake://127.0.0.1:1') is None",
        "mooncake",
        "mooncake",
    ),
    Use(
        "import pathlib, tempfile; from ragboost.booster.tokens.local import load_tokenizer\n"
        "path = pathlib.Path(tempfile.mkdtemp()) / 'tokenizer.json'\n"
        'text = \'{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, \'\n'
        'path.write_text(text + \'"unk_token": "a"}}\'); load_tokenizer(path)',
        "tokenizers",
        "tokens",
    ),
    Use(
        "from ragboost.proxy.observability.tracing import Tracing; Tracing()",
        "opentelemetry",
        "otel",
    ),
    Use(
        "from ragboost.integrations.langchain import BoostRetriever", "langchain_core", "langchain"
    ),
    Use("from ragboost.integrations.langchain import BoostMiddleware", "langchain", "langchain"),
    Use("import ragboost.integrations.langchain.retriever", "langchain_core", "langchain"),
    Use("import ragboost.integrations.llama_index.nodes", "llama_index", "llama-index"),
    Use("from ragboost.integrations.litellm import BoostHook", "litellm", "litellm"),
    Use("from ragboost.integrations.ray import boosted; boosted(None)", "ray.data", "ray"),
    Use("from ragboost.integrations.ray import deploy; deploy()", "ray.serve", "ray"),
]
COMMANDS = (
    ["engine"],
    ["serve", "--embedded"],
    ["eval-reuse", "--model", ".", "--data", "README.md"],
)
BLOCK = """
import sys
from importlib.abc import MetaPathFinder


class Block(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {missing!r}.split(".")[0]:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Block())
"""


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_extra_for_users_is_tested_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    tested = {use.extra for use in EXTRAS}
    assert tested | FOR_DEVELOPERS | WITHOUT_ERROR == set(project["optional-dependencies"])


@pytest.mark.parametrize("use", EXTRAS, ids=lambda use: use.package)
def test_without_the_extra_the_error_says_what_to_install(use: Use) -> None:
    done = run(BLOCK.format(missing=use.package) + use.line)

    last = done.stderr.strip().splitlines()[-1]
    package = use.package.partition(".")[0]  # what pip knows, not a module of it
    assert last.startswith(f"ragboost.errors.MissingExtraError: {package} is not installed")
    assert f'pip install "ragboost-middleware[{use.extra}]"' in last


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_without_its_extra_is_one_sentence(command: list[str]) -> None:
    code = f"sys.argv = {['ragboost', *command]!r}\nfrom ragboost.cli import main\nmain()"

    done = run(BLOCK.format(missing="torch") + code)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().splitlines()[-1] == (
        'ragboost: torch is not installed; it comes with: pip install "ragboost-middleware[engine]"'
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(use, marks=own_environment if use.extra in NOISY else (), id=use.package)
        for use in EXTRAS
    ],
)
def test_with_the_extra_it_works(use: Use) -> None:
    needs(use.package.split(".")[0])
    line = use.line
    if use.extra == "ray":  # without a cluster
        line = f"import {use.package}, ragboost.integrations.ray"

    done = run(line, "-W", "default" if use.extra in NOISY else "error")

    assert done.returncode == 0, done.stderr


def test_integrations_load_no_framework() -> None:
    code = (
        "import sys, ragboost.integrations, ragboost.integrations.placement\n"
        "import ragboost.integrations.turns\n"
        "names = {'langchain_core', 'langchain', 'llama_index', 'litellm', 'ray'}\n"
        "print(names & set(sys.modules))"
    )
    assert run(code).stdout.strip() == "set()"
