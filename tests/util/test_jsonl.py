"""A line of JSONL ends at a line end only; errors name lines that are not objects."""

from pathlib import Path

import pytest

from ragboost.errors import RequestError
from ragboost.util.jsonl import read_objects


def test_separators_inside_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    texts = ["a\u2028b", "c\u2029d", "e\x85f", "g\u000bh"]
    rows = [f'{{"text": "{text}"}}' for text in texts[:3]] + ['{"text": "g\\u000bh"}']
    path.write_bytes("\r\n".join(["\ufeff" + rows[0], "", *rows[1:]]).encode())

    found = list(read_objects(path))

    assert [row["text"] for _, row in found] == texts
    assert [where for where, _ in found] == [f"{path}:{number}" for number in (1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON: Expecting property name .* at character 2$"),
        (b"[1]", "must be an object, got array"),
        (b"null", "must be an object, got null"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"{}\n" + line)
    with pytest.raises(RequestError, match=f"lines.jsonl:2: {reason}"):
        list(read_objects(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read .*: No such file"):
        list(read_objects(tmp_path / "none.jsonl"))
