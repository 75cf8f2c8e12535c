"""The catalogue says what was prepared, and survives what files go through."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ragboost.chunk_cache.precompute.catalog import FILE, ChunkCatalog, PreparedChunk, recipe_of
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.errors import ChunkCacheError


def entry(document: str, *, plain: str = "", recipe: str = "r", key: str = "") -> PreparedChunk:
    plain = plain or f"plain {document}"
    return PreparedChunk(
        document, plain, recipe, key or f"{plain} {recipe}", num_tokens=3, size_bytes=10
    )


def test_a_recipe_is_its_neighbours_in_order() -> None:
    assert recipe_of([]) == ""
    assert recipe_of([(1, 2), (3,)]) == recipe_of([[1, 2], [3]])
    recipes = [recipe_of(n) for n in ([(1, 2), (3,)], [(3,), (1, 2)], [(1,), (2, 3)], [(3,)])]
    assert len(set(recipes)) == 4


def test_recipes_are_found_by_plain_key_after_opening_again(tmp_path: Path) -> None:
    catalog = ChunkCatalog(tmp_path)
    catalog.record(entry("a"))
    catalog.record(entry("b", recipe=""))
    catalog.record(entry("a", recipe="s"))
    for found in (catalog, ChunkCatalog(tmp_path)):
        assert dict(found) == {"plain a": "s"}  # b is plain
        assert found.documents == ["b", "a"]
        assert found.size_bytes == 20
        assert found.entry("a") == entry("a", recipe="s")
        assert found.keeps("plain a s")
        assert not found.keeps("plain a r")
    assert ChunkCatalog.read(tmp_path) == {"plain a": "s"}
    assert ChunkCatalog.read(tmp_path / "nowhere") == {}
    assert not (tmp_path / "nowhere").exists()


def test_what_was_forgotten_stays_forgotten(tmp_path: Path) -> None:
    catalog = ChunkCatalog(tmp_path)
    catalog.record(entry("a"))
    catalog.forget("a")
    catalog.forget("never there")
    assert (dict(catalog), dict(ChunkCatalog(tmp_path))) == ({}, {})


def test_documents_of_equal_text_share_a_recipe_until_both_are_gone(tmp_path: Path) -> None:
    catalog = ChunkCatalog(tmp_path)
    catalog.record(entry("a", plain="p"))
    catalog.record(entry("b", plain="p"))
    assert catalog.size_bytes == 10
    catalog.forget("a")
    assert dict(catalog) == {"p": "r"}
    catalog.forget("b")
    assert dict(catalog) == {}


def test_a_line_that_a_crash_cut_off_is_ignored(tmp_path: Path) -> None:
    catalog = ChunkCatalog(tmp_path)
    catalog.record(entry("a"))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"document": "b", "pla')
    again = ChunkCatalog(tmp_path)
    assert again.documents == ["a"]
    again.record(entry("c"))
    assert ChunkCatalog(tmp_path).documents == ["a", "c"]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"document": "b", "pla\n{"document": "c"}\n')
    with pytest.raises(ChunkCacheError, match=r"catalog.jsonl:1 is not a catalog entry"):
        ChunkCatalog(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        *(
            json.dumps({**asdict(entry("a")), **changed}).encode()
            for changed in (
                {"key": "../victim"},
                {"plain": "/p"},
                {"num_tokens": "1"},
                {"size_bytes": -1},
                {"recipe": ["r"]},
                {"more": 1},
            )
        ),
        b"[" * 100_000,
        b"[1]",
        b'"a"',
        b"\xff\xfe",
    ],
)
def test_a_crafted_line_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / FILE).write_bytes(line + b"\n\n")
    with pytest.raises(ChunkCacheError, match=":1 is not a catalog entry"):
        ChunkCatalog(tmp_path)


@pytest.mark.parametrize("key", ["../victim", "/etc/victim", "..", "", "a/b", "a" * 300, "a\0b"])
def test_no_key_names_a_file_outside_of_the_directory(tmp_path: Path, key: str) -> None:
    victim = tmp_path / "victim.safetensors"
    victim.write_bytes(b"precious")
    disk = DiskTier(tmp_path / "kv", capacity_bytes=1 << 20)
    for use in (disk.remove, disk.load, disk.open, disk.__contains__):
        with pytest.raises(ChunkCacheError, match="is not the key of a chunk"):
            use(key)
    assert victim.exists()
