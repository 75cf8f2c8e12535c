"""Each package loads only what the import rule (docs/architecture.md) allows, in a new process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import needs, own_environment

ROOT = Path(__file__).parents[1]
WEB = {"starlette", "uvicorn", "aiohttp"}
EVENTS = {"zmq", "msgspec"}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
NUMPY = {"numpy", "scipy"}
SETTINGS = {"pydantic", "pydantic_settings"}
LANGCHAIN = {"langchain", "langchain_core", "langgraph"}
FRAMEWORKS = LANGCHAIN | {"llama_index", "litellm", "ray"}
HEAVY = WEB | EVENTS | TORCH | NUMPY | SETTINGS | FRAMEWORKS

# Modules of HEAVY that importing a package may load. The longest matching name applies.
RULES: dict[str, set[str]] = {
    "ragboost": set(),
    "ragboost.types": set(),
    "ragboost.errors": set(),
    "ragboost.util": {"msgspec"} | NUMPY,
    "ragboost.config": SETTINGS,
    "ragboost.index": NUMPY | SETTINGS,
    "ragboost.ordering": NUMPY | SETTINGS,
    "ragboost.dedup": NUMPY | SETTINGS,
    "ragboost.hints": NUMPY | SETTINGS,
    "ragboost.booster": NUMPY | SETTINGS,
    "ragboost.batch": {"msgspec"} | NUMPY | SETTINGS,
    "ragboost.evaluation": {"msgspec", "aiohttp"} | NUMPY | SETTINGS,
    "ragboost.evaluation.demo": {"msgspec"} | NUMPY | SETTINGS | WEB,
    "ragboost.requests": {"msgspec"} | NUMPY | SETTINGS,
    "ragboost.requests.wires": set(),
    "ragboost.engine_hooks": {"msgspec"},  # inside an engine's process
    "ragboost.cache_sync": EVENTS | NUMPY | SETTINGS,
    "ragboost.proxy.hosted": {"msgspec"} | NUMPY | SETTINGS,
    "ragboost.proxy.sessions": SETTINGS,
    "ragboost.proxy.serving": {"msgspec"} | SETTINGS | WEB,
    "ragboost.integrations.retrieval": NUMPY | SETTINGS,
    "ragboost.cli": NUMPY | SETTINGS,
    "ragboost.proxy": NUMPY | SETTINGS | EVENTS | WEB,
    "ragboost.chunk_cache": NUMPY | SETTINGS | TORCH | EVENTS,
    "ragboost.graph": NUMPY | SETTINGS | TORCH,
    "ragboost.engine": NUMPY | SETTINGS | TORCH | WEB | EVENTS,
    "ragboost.integrations": NUMPY | SETTINGS,
    "ragboost.integrations.langchain": NUMPY | SETTINGS | LANGCHAIN,
    "ragboost.integrations.litellm": set(),
    "ragboost.integrations.litellm.hook": HEAVY - {"torch"},
    "ragboost.integrations.llama_index": NUMPY | SETTINGS | {"llama_index", "aiohttp"},
    "ragboost.integrations.ray": {"msgspec"} | NUMPY | SETTINGS,
}

LITELLM = "ragboost.integrations.litellm.hook"
# These run in the engines' own environments, where tests/engines run them.
ENGINES = ("ragboost.chunk_cache.vllm", "ragboost.chunk_cache.sglang")


def _modules(package: str) -> list[str]:
    """Return the existing modules of the package, the package itself first."""
    path = ROOT.joinpath(*package.split("."))
    if package != "ragboost" and path.is_dir():
        files = [f.relative_to(ROOT).with_suffix("") for f in sorted(path.rglob("*.py"))]
        names = [".".join(file.parts).removesuffix(".__init__") for file in files]
        inner = [rule for rule in RULES if rule.startswith(f"{package}.")]
        inner.extend(ENGINES)
        return [n for n in names if not any(n == r or n.startswith(f"{r}.") for r in inner)]
    return [package] if path.is_dir() or path.with_suffix(".py").is_file() else []


def _loaded(modules: list[str]) -> set[str]:
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=own_environment if name == LITELLM else ()) for name in RULES],
)
def test_a_package_loads_only_what_it_may(package: str) -> None:
    modules = _modules(package)
    if package == LITELLM:
        needs("litellm")
    if not modules:
        pytest.skip(f"{package} is not there yet")
    if "torch" in RULES[package]:
        pytest.importorskip("torch", reason="needs the extra engine")

    assert _loaded(modules) & HEAVY <= RULES[package]


def test_every_package_has_a_rule() -> None:
    packages = {f"ragboost.{p.parent.name}" for p in (ROOT / "ragboost").glob("*/__init__.py")}

    assert packages <= set(RULES)
