import re

import pytest

from ragboost import errors
from ragboost.errors import (
    MissingExtraError,
    RagBoostError,
    RequestError,
    SessionNotFoundError,
    import_extra,
    json_type,
    show,
)


def _tree(cls: type[Exception], depth: int = 0) -> dict[str, int]:
    tree = {cls.__name__: depth}
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            tree |= _tree(child, depth + 1)
    return tree


def test_the_docstring_draws_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^( *)(\w+Error)\b", errors.__doc__, flags=re.MULTILINE)

    depths = {name: len(indent) // 4 - 1 for indent, name in drawn}
    assert depths == _tree(RagBoostError)


def test_a_request_error_carries_field_and_status() -> None:
    error = RequestError("documents must be a list", param="documents")

    assert (error.param, error.status, str(error)) == (
        "documents",
        400,
        "documents must be a list",
    )
    assert SessionNotFoundError("no session 'x'").status == 404


def test_a_missing_extra_says_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r'pip install "ragboost-middleware\[retrieval\]"'):
        import_extra("no_such_package_at_all.part", extra="retrieval")


def test_an_extra_that_is_there_is_imported() -> None:
    assert import_extra("json.decoder", extra="any").__name__ == "json.decoder"


def test_an_extra_that_fails_on_its_own_imports_says_so(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "half_installed.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(str(folder))

    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        import_extra("half_installed", extra="any")


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (None, "null", "null"),
        (True, "boolean", "true"),
        (5, "number", "5"),
        (1.5, "number", "1.5"),
        pytest.param(10**5000, "number", "a number that is too long to print", id="long"),
        ("naïve\u202e", "string", '"na\\u00efve\\u202e"'),
        (["é"], "array", '["é"]'),
        ({"a": "b" * 80}, "object", '{"a": "' + "b" * 50 + "..."),
        ((1,), "tuple", "[1]"),
        (b"x", "bytes", "b'x'"),
    ],
)
def test_values_are_shown_as_json(value: object, kind: str, shown: str) -> None:
    assert (json_type(value), show(value)) == (kind, shown)
