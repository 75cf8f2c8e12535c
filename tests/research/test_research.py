"""The package does not import `research`, which is not in the wheel."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ragboost"


def test_the_package_does_not_import_research() -> None:
    imported = [
        (str(path), name)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
        if name is not None and name.partition(".")[0] == "research"
    ]

    assert not imported
