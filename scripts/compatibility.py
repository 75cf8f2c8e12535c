"""Write the table of versions that RAGBoost needs and is tested with, from the files that pin them.

`scripts.reference` makes the page of it. What runs with these versions is `.ci/run`.
"""

import re
import tomllib
from pathlib import Path

from ragboost.chunk_cache.sglang import compat as sglang
from ragboost.chunk_cache.vllm import compat as vllm

ROOT = Path(__file__).parents[1]
PINS = ("requirements-dev.txt", "requirements-integrations.txt")
ENGINES = {"vLLM": vllm.TESTED_VERSIONS, "SGLang": sglang.TESTED_VERSIONS}
SHOWN = {  # packages of the table, with the extra that brings them
    "langchain-core": "langchain",
    "llama-index-core": "llama-index",
    "litellm": "litellm",
    "ray": "ray",
    "redis": "redis",
    "mooncake-transfer-engine-non-cuda": "mooncake",
    "transformers": "engine",
    "openai": "test",
    "anthropic": "test",
    "starlette": "",
    "aiohttp": "",
    "pydantic": "",
}


def compatibility_page() -> str:
    """Return the page of versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    lines = [
        "# Compatibility",
        "",
        "The package has lower bounds, and an upper one only for transformers (below 6). CI runs "
        "the tests with the pinned versions, and those of the core also with the lowest.",
        "",
        "| | needs | tested with |",
        "|---|---|---|",
        f"| Python | {project['requires-python'].removeprefix('>=')} or later "
        f"| {', '.join(pythons)} |",
    ]
    for name, versions in ENGINES.items():
        lines.append(
            f"| {name}, for [chunk reuse](../chunk-cache.md) | one of the versions beside, else it "
            f"stays off | {', '.join(versions)} |"
        )
    lines.append(
        "| vLLM, SGLang and others, in front of the engine | OpenAI's API; "
        "[cache events](../cache-sync.md) are optional | the same |"
    )
    for package, extra in SHOWN.items():
        bounds = _lower_bound(package, project)
        brought = f" (extra `{extra}`)" if extra and extra != "test" else ""
        lines.append(f"| {package}{brought} | {bounds} | {', '.join(_pins(package)) or '-'} |")
    lines += [
        "",
        "The server for `redis` is Redis or Valkey, one server without a cluster. `openai` and "
        "`anthropic` are clients of applications; RAGBoost does not need them. Nothing has been "
        "tested on a GPU or on Windows.",
    ]
    return "\n".join(lines) + "\n"


def _lower_bound(package: str, project: dict[str, object]) -> str:
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    dependencies = project["dependencies"]
    assert isinstance(dependencies, list)
    for line in [*dependencies, *(line for lines in extras.values() for line in lines)]:
        if found := re.match(rf"{package}(?:\[[\w,]+\])?>=([\d.]+)", line):
            return f"{found[1]} or later"
    return "any"


def _pins(package: str) -> list[str]:
    """Return the pinned versions, in the order of the files, each once."""
    found = [
        version
        for name in PINS
        for version in re.findall(
            rf"^{package}(?:\[[\w,]+\])?==([\w.]+)", (ROOT / name).read_text("utf-8"), re.MULTILINE
        )
    ]
    return list(dict.fromkeys(found))
