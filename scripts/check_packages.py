"""Build wheel and sdist, install them, and measure the core's size and import time.

`make packages` needs the package index and some minutes. It creates one environment per installed
Python, and one with the lowest direct dependencies of `pyproject.toml`, in which it runs tests. For
every supported Python it checks that all packages of the extras have wheels.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
MAX_CORE_MB = 150
MAX_IMPORT_S = 0.3
EXTRAS = (  # litellm requires older packages than the engine
    ("engine", "tokens", "otel", "langchain", "llama-index", "ray"),
    ("litellm",),
)
LOWEST_TESTS = (
    *("index", "ordering", "batch", "engine_hooks"),
    *("booster/test_booster.py", "test_config.py", "cache_sync"),
    *("requests/wires", "requests/test_history.py", "requests/test_json_body.py"),
    *(
        "proxy/serving",
        "proxy/sessions",
        "proxy/asgi",
        "proxy/observability/test_instruments.py",
        "proxy/upstream/test_client.py",
        "proxy/upstream/test_relay.py",
        "proxy/routes/test_sessions.py",
    ),
)


def run(command: Sequence[str | Path], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Return a command's output; exit with it if the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; check the wheel's files."""
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT], cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        missing = {"ragboost/py.typed", "ragboost/cli/__init__.py"} - set(archive.namelist())
    foreign = {top for top in tops if top != "ragboost" and not top.endswith(".dist-info")}
    if foreign or missing:
        sys.exit(f"{wheel.name}: unexpected {sorted(foreign)}, missing {sorted(missing)}")
    return wheel, sdist


def find_python(version: str) -> str | None:
    """Return an installed interpreter of that version, also from pyenv, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    others = sorted(str(path) for path in pyenv.glob(f"{version}.*/bin/python"))
    for name in (sys.executable, f"python{version}", *others):
        path = shutil.which(name)
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        if path is None:
            continue
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def check_core(python: str, wheel: Path, *, folder: Path) -> dict[str, object]:
    """Install the wheel into a fresh environment; measure its size and `import ragboost`."""
    venv = folder / "core"
    run(["uv", "venv", "-q", "--python", python, venv], cwd=folder)
    inside = {"VIRTUAL_ENV": str(venv)}
    run(["uv", "pip", "install", "-q", "--compile-bytecode", wheel], cwd=folder, env=inside)
    version = run([venv / "bin" / "ragboost", "--version"], cwd=folder).strip()
    run([venv / "bin" / "ragboost", "--help"], cwd=folder)
    files = [path for path in venv.glob("lib/**/*") if path.is_file() and not path.is_symlink()]
    python_inside = venv / "bin" / "python"
    return {
        "version": version,
        "size_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "import_s": _import_seconds(python_inside, "import ragboost", cwd=folder),
        "booster_s": _import_seconds(
            python_inside, "import ragboost; ragboost.Booster", cwd=folder
        ),
    }


def _import_seconds(python: Path, code: str, *, cwd: Path) -> float:
    """Return the processor time of an import, in seconds: the median of five runs."""
    timed = f"import time; s = time.process_time(); {code}; print(time.process_time() - s)"
    return round(statistics.median(float(run([python, "-c", timed], cwd=cwd)) for _ in range(5)), 3)


def count_wheels(version: str, *, folder: Path) -> list[int]:
    """Resolve the extras for a Python version; return the number of packages of each set.

    Exits if a package has no wheel for this version and platform.
    """
    resolve: list[str | Path] = [
        "uv",
        "pip",
        "compile",
        "-q",
        "--no-header",
        "--no-annotate",
        ROOT / "pyproject.toml",
    ]
    resolve += ["--python-version", version, "--only-binary", ":all:"]
    return [
        len(run([*resolve, *(f"--extra={name}" for name in extras)], cwd=folder).splitlines())
        for extras in EXTRAS
    ]


def check_lowest(wheel: Path, *, folder: Path) -> str:
    """Run tests with the lowest direct dependencies; return pytest's last line."""
    venv = folder / "lowest"
    run(["uv", "venv", "-q", "--python", sys.executable, venv], cwd=folder)
    lowest = ["uv", "pip", "install", "-q", "--resolution", "lowest-direct"]
    target = f"ragboost-middleware[test] @ {wheel.as_uri()}"
    run([*lowest, target], cwd=folder, env={"VIRTUAL_ENV": str(venv), "UV_COMPILE_BYTECODE": "0"})
    tests = [ROOT / "tests" / name for name in LOWEST_TESTS]
    arguments: list[str | Path] = [
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-x",
        *tests,
    ]
    # What is imported is compiled once, not by each of the processes that tests start.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    done = run([venv / "bin" / "python", *arguments], cwd=ROOT, env=bytecode)
    return done.strip().splitlines()[-1]


def main() -> None:
    """Print a table or JSON; exit with 1 if a check fails or a limit is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    result: dict[str, object] = {}
    os.environ["UV_PYTHON_DOWNLOADS"] = "never"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        result["files"] = {path.name: path.stat().st_size for path in (wheel, sdist)}
        cores: dict[str, dict[str, object]] = {}
        for version in PYTHONS:
            if python := find_python(version):
                place = folder / version
                place.mkdir()
                cores[version] = check_core(python, wheel, folder=place)
                shutil.rmtree(place)
        result["core"] = cores
        result["wheels"] = {version: count_wheels(version, folder=folder) for version in PYTHONS}
        result["lowest"] = check_lowest(wheel, folder=folder)
    print(json.dumps(result)) if as_json else _show(result, cores)
    over = [
        version
        for version, core in cores.items()
        if float(str(core["size_mb"])) > MAX_CORE_MB or float(str(core["import_s"])) > MAX_IMPORT_S
    ]
    if over:
        sys.exit(f"above {MAX_CORE_MB} MB or {MAX_IMPORT_S} s with Python {', '.join(over)}")


def _show(result: dict[str, object], cores: dict[str, dict[str, object]]) -> None:
    table = Table("Python", "core, MB", "import, s", "with Booster, s", title="Installed core")
    for version in PYTHONS:
        core = cores.get(version)
        cells = [str(core[key]) for key in ("size_mb", "import_s", "booster_s")] if core else []
        table.add_row(version, *(cells or ["not found"]))
    console = Console()
    console.print(table)
    console.print(f"packages of all extras but litellm, and of litellm: {result['wheels']}")
    console.print(f"lowest dependencies: {result['lowest']}")


if __name__ == "__main__":
    main()
