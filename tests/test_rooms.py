"""Rooms import downwards only, type-checking and lazy imports included (docs/architecture.md)."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the foundation up: a room may import those above it in this list, and itself.
ROOMS = [
    "errors",
    "util",
    "cache_events",
    "types",
    "requests.wires",
    "config",
    "index",
    "ordering",
    "dedup",
    "hints",
    "booster",
    "requests",
    "engine_hooks",
    "cache_sync",
    "proxy",
    "integrations.retrieval",
    "chunk_cache",
    "graph",
    "engine",
    "batch",
    "evaluation",
    "integrations",
    "cli",
    "__main__",
]
# Rooms within a package, in the same way; files beside them may import all of them.
INNER_ROOMS = {
    "booster": ["context", "tokens", "booster"],
    "requests": ["wires", "formats"],
    "proxy": [
        "sessions",
        "hosted",
        "serving",
        "asgi",
        "observability",
        "upstream",
        "quality",
        "replicas",
        "routing",
        "routes",
    ],
    "engine": ["runtime", "text", "http"],
    "chunk_cache": [
        "eviction",
        "store",
        "model",
        "selection",
        "core",
        "eval",
        "http",
        "vllm",
        "sglang",
    ],
}
# Two houses that talk over HTTP: the wing imports nothing of the middleware but its own section of
# the settings, the middleware nothing of the wing. Both use the ground; what is above uses both.
WING = {"chunk_cache", "graph", "engine"}
GROUND = {"errors", "util", "cache_events", "types", "config"}
ABOVE = {"batch", "evaluation", "integrations", "cli", "__main__"}
MIDDLEWARE = {room.split(".")[0] for room in ROOMS} - WING - GROUND - ABOVE
MAX_ENTRIES = 24
MAX_FILES = 15
MAX_LINES = 400
MAX_FUNCTION_LINES = 60


def _modules() -> Mapping[str, Path]:
    files = sorted((ROOT / "ragboost").rglob("*.py"))
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files]
    return {n.removesuffix(".__init__"): f for n, f in zip(names, files, strict=True)}


MODULES = _modules()


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in inner)


IMPORTS = {name: {n for n in _imported(path) if n != name} for name, path in MODULES.items()}


def _rank(rooms: list[str], module: str, depth: int) -> int | None:
    """Return the place of a module's room, of the innermost one that is in the list."""
    parts = module.split(".")[depth:]
    names = [".".join(parts[:size]) for size in range(len(parts), 0, -1)]
    return next((rooms.index(name) for name in names if name in rooms), None)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    place = ROOMS.index(room)
    names = [name for name in MODULES if _rank(ROOMS, name, 1) == place]
    upwards = [
        f"{name} imports {other}"
        for name in names
        for other in IMPORTS[name]
        if (rank := _rank(ROOMS, other, 1)) is not None and rank > place
    ]

    assert names, f"ragboost.{room} does not exist: remove it from ROOMS"
    assert not upwards


@pytest.mark.parametrize(("house", "other"), [(WING, MIDDLEWARE | ABOVE), (MIDDLEWARE, WING)])
def test_a_house_imports_nothing_of_the_other(house: set[str], other: set[str]) -> None:
    across = [
        f"{name} imports {imported}"
        for name in MODULES
        if name.count(".") and name.split(".")[1] in house
        for imported in IMPORTS[name]
        if imported.count(".") and imported.split(".")[1] in other
    ]

    assert not across


@pytest.mark.parametrize("package", INNER_ROOMS)
def test_an_inner_room_imports_only_rooms_below_it(package: str) -> None:
    rooms, upwards = INNER_ROOMS[package], []
    for name in MODULES:
        own = _rank(rooms, name, 2) if name.startswith(f"ragboost.{package}.") else None
        for other in IMPORTS[name]:
            rank = _rank(rooms, other, 2) if other.startswith(f"ragboost.{package}.") else None
            if own is not None and rank is not None and rank > own:
                upwards.append(f"{name} imports {other}")

    assert not upwards


def test_no_modules_import_each_other_in_a_circle() -> None:
    # The package itself imports its public names on first use.
    left = {name: others - {"ragboost"} for name, others in IMPORTS.items() if name != "ragboost"}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]

    assert not left, "a circle, and what imports it"


def test_every_module_belongs_to_a_room() -> None:
    assert {name.split(".")[1] for name in MODULES if "." in name} <= set(ROOMS)


def test_the_package_is_seen_at_one_glance() -> None:
    entries = [path for path in (ROOT / "ragboost").iterdir() if path.name != "__pycache__"]

    assert len(entries) <= MAX_ENTRIES


def test_a_folder_holds_about_a_dozen_files() -> None:
    files = Counter(path.parent for path in MODULES.values())

    assert not {str(folder): n for folder, n in files.items() if n > MAX_FILES}


def test_a_file_is_read_in_one_sitting() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}

    assert not {name: count for name, count in lines.items() if count > MAX_LINES}


def test_a_function_fits_on_a_screen() -> None:
    lines = {
        f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert not {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES}


def test_no_public_class_name_occurs_twice() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)

    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """At most one in a hundred opens with a bare What, Which, Whether, Where or Who."""
    first = [
        (text.split(maxsplit=1) or [""])[0]
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node)) is not None
    ]
    odd = [word for word in first if word in {"What", "Which", "Whether", "Where", "Who", "Whose"}]

    assert len(odd) <= len(first) / 100
