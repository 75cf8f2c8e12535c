"""A corpus of real text on every machine, the documentation in Python's standard library, and many
users' questions about it, in sessions and conversations, deterministic for a seed."""

import ast
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ragboost.errors import RagBoostError
from ragboost.integrations.retrieval import BM25Retriever
from ragboost.types import Document

MODULES = (
    *("argparse", "asyncio", "collections", "concurrent", "configparser", "csv", "datetime"),
    *("email", "fractions", "functools", "http", "inspect", "json", "logging", "multiprocessing"),
    *("pathlib", "random", "shutil", "socket", "sqlite3", "statistics", "subprocess", "tarfile"),
    *("tempfile", "threading", "typing", "unittest", "urllib", "xml", "zipfile"),
)

_CHUNK_CHARACTERS = (200, 1200)  # shorter docstrings are skipped, longer ones are cut


def standard_library() -> list[Document]:
    """Return a document per docstring of the standard library, with its dotted name as id and the
    signature above it, cut to 1,200 characters at a line end."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents: dict[str, Document] = {}
    for name in MODULES:
        for path in _files(root, name):
            for document in _chunks(path, root):
                documents.setdefault(str(document.id), document)
    if not documents:
        raise RagBoostError(f"no standard library sources below {root}: the demo needs their text")
    return list(documents.values())


def _files(root: Path, module: str) -> Iterable[Path]:
    if (root / f"{module}.py").is_file():
        return [root / f"{module}.py"]
    return sorted(path for path in (root / module).rglob("*.py") if "test" not in path.parts)


def _chunks(path: Path, root: Path) -> Iterator[Document]:
    dotted = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
    dotted = dotted.removesuffix(".__init__")
    stack: list[tuple[str, ast.AST]] = [(dotted, ast.parse(path.read_text(encoding="utf-8")))]
    while stack:
        name, node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) >= _CHUNK_CHARACTERS[0]:
                yield Document(_cut(_head(node, name) + text), id=name, title=name)
        stack.extend(
            (f"{name}.{child.name}", child)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not child.name.startswith("_")
        )


def _head(node: ast.AST, name: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"{name}({ast.unparse(node.args)})\n"
    return ""


def _cut(text: str) -> str:
    limit = _CHUNK_CHARACTERS[1]
    return text if len(text) <= limit else text[: text.rfind("\n", 0, limit) + 1 or limit].rstrip()


_FORMS = (
    "How does {name} work, and when should I use it?",
    "What does {name} return?",
    "Please explain {name} with its parameters.",
    "What can go wrong with {name}?",
)
_THEMES = 12  # parts of the library that most questions are about


class WorkloadTurn(NamedTuple):
    question: str
    documents: tuple[Document, ...]


class Workload(NamedTuple):
    sessions: list[WorkloadTurn]  # independent users, one question each
    conversations: list[list[WorkloadTurn]]  # users with several questions


def make_workload(
    documents: Sequence[Document],
    *,
    sessions: int,
    conversations: int,
    turns: int,
    k: int,
    seed: int,
) -> Workload:
    """Draw questions, most of them about a few themes, as at a support desk."""
    draw, search = random.Random(seed), BM25Retriever(documents)
    themes: dict[str, list[Document]] = {}
    for document in documents:
        themes.setdefault(".".join(str(document.id).split(".")[:2]), []).append(document)
    popular = sorted(themes.values(), key=len, reverse=True)[:_THEMES]

    def ask(theme: Sequence[Document]) -> WorkloadTurn:
        name = str(draw.choice(theme).id)
        question = draw.choice(_FORMS).format(name=name)
        return WorkloadTurn(
            question, tuple(search.retrieve(name.replace(".", " ").replace("_", " "), k))
        )

    return Workload(
        [ask(draw.choice(popular)) for _ in range(sessions)],
        [
            [ask(theme) for _ in range(turns)]
            for theme in (draw.choice(popular) for _ in range(conversations))
        ],
    )
