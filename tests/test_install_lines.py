"""The project never tells anybody to install `ragboost` from a package index: it is another's."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("ragboost", "research", "benchmarks", "docs", "examples", "deploy", "scripts", "tests")
SUFFIXES = {".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".txt", ".cfg", ".html", ""}

# `pip install ragboost`, with options, quotes or extras before or behind the bare name; a path
# (`./ragboost`) and a wheel (`ragboost_middleware-*.whl`) are no such thing.
FOREIGN = re.compile(
    r"""pip[ ](?:install|wheel|download)[^\n`;&|]*[ ]["']?ragboost(?:["'\[=<>~@\s`),]|$)""",
    re.MULTILINE,
)


def test_no_file_installs_the_other_project() -> None:
    files = [path for place in PLACES for path in (ROOT / place).rglob("*")]
    files += [path for path in ROOT.iterdir() if path.name != "CHANGELOG.md"]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in files
        if path.is_file() and path.suffix in SUFFIXES and path != Path(__file__)
        for match in FOREIGN.finditer(path.read_text("utf-8", errors="replace"))
    ]

    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install ragboost",
        "pip install 'ragboost[engine]'",
        'uv pip install -q --python x "ragboost[engine,tokens]" openai',
        "pip install --no-deps ragboost        # into the engine's environment",
        "`pip install ragboost`",
        "pip install ragboost==0.1",
    ],
)
def test_the_old_forms_are_recognised(line: str) -> None:
    assert FOREIGN.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install '.[engine]'",
        "pip install --no-deps ./ragboost",
        "pip install ragboost_middleware-0.1.0-py3-none-any.whl",
        "pip install -e . && ragboost serve",
    ],
)
def test_the_clone_and_its_wheel_are_allowed(line: str) -> None:
    assert not FOREIGN.search(line)


def test_extras_that_name_the_project_use_its_distribution_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [line for lines in project["optional-dependencies"].values() for line in lines]

    assert project["name"] == "ragboost-middleware"
    assert {re.match(r"[\w.-]+", line).group() for line in lines if "ragboost" in line} == {  # type: ignore[union-attr]
        "ragboost-middleware"
    }
