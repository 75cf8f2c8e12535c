"""Each extra is absent with a helpful error, and present with its names, in a fresh process."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = [  # import line, the package that is missing, the extra that brings it
    ("from ragboost.integrations.langchain import BoostRetriever", "langchain_core", "langchain"),
    ("from ragboost.integrations.langchain import BoostMiddleware", "langchain", "langchain"),
    ("import ragboost.integrations.langchain.retriever", "langchain_core", "langchain"),
    ("import ragboost.integrations.llama_index.nodes", "llama_index", "llama-index"),
    ("from ragboost.integrations.litellm import BoostHook", "litellm", "litellm"),
    ("from ragboost.integrations.ray import boosted; boosted(None)", "ray.data", "ray"),
    ("from ragboost.integrations.ray import deploy; deploy()", "ray.serve", "ray"),
]
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


@pytest.mark.parametrize(("line", "missing", "extra"), EXTRAS)
def test_without_the_extra_the_error_says_what_to_install(
    line: str, missing: str, extra: str
) -> None:
    done = run(BLOCK.format(missing=missing) + line)

    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ragboost.errors.MissingExtraError: ")
    assert f"pip install 'ragboost[{extra}]'" in last


@pytest.mark.parametrize(("line", "package", "extra"), EXTRAS)
def test_with_the_extra_the_import_works(line: str, package: str, extra: str) -> None:
    if find_spec(package.split(".")[0]) is None:
        pytest.skip(f"{package} is not installed here; make test-integrations has it")
    if extra == "ray":
        line = f"import {package}, ragboost.integrations.ray"
    is_noisy = extra in ("litellm", "ray")  # they warn of their own doings

    done = run(line, "-W", "default" if is_noisy else "error")

    assert done.returncode == 0, done.stderr


def test_integrations_load_no_framework() -> None:
    code = (
        "import sys, ragboost.integrations, ragboost.integrations.placing\n"
        "import ragboost.integrations.turns, ragboost.integrations.tool_results\n"
        "names = {'langchain_core', 'langchain', 'llama_index', 'litellm', 'ray'}\n"
        "print(names & set(sys.modules))"
    )
    assert run(code).stdout.strip() == "set()"
