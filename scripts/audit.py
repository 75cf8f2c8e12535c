"""Check the pinned dependencies for known vulnerabilities, where an advisory service answers.

    python -m scripts.audit

Exits with 1 if a pinned version has a known vulnerability, with 3 if a file could not be checked:
without network, or where pip-audit cannot be installed.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS = ("requirements-dev.txt", "requirements-integrations.txt")
_PIP_AUDIT = "pip-audit==2.10.1"
_TIMEOUT_S = 240
_VULNERABLE, _UNCHECKED = 1, 3


def main() -> int:
    """Check the files of PINS; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        python = _install(Path(folder))
        if python is None:
            print("audit: NOT CHECKED, since pip-audit could not be installed")
            return _UNCHECKED
        return conclude({name: _audit(python, ROOT / name) for name in PINS})


def conclude(reports: Mapping[str, Mapping[str, Any]]) -> int:
    """Print what was found in each file; return the exit code."""
    found = [line for name, report in reports.items() for line in vulnerabilities(name, report)]
    unchecked = [name for name, report in reports.items() if not num_checked(report)]
    checked = sum(num_checked(report) for report in reports.values())
    print(*found, sep="\n", end="\n" if found else "")
    print(f"audit: {len(found)} known vulnerabilities in {checked} pinned packages")
    for name in unchecked:
        print(f"audit: {name} was NOT CHECKED, since no advisory service answers")
    return _VULNERABLE if found else _UNCHECKED if unchecked else 0


def vulnerabilities(name: str, report: Mapping[str, Any]) -> list[str]:
    """Return a line for each vulnerability that pip-audit reports of a file."""
    return [
        f"{name}: {package['name']} {package['version']} has {one['id']}, "
        f"fixed in {', '.join(one['fix_versions']) or 'no version'}"
        for package in report["dependencies"]
        for one in package.get("vulns", ())
    ]


def num_checked(report: Mapping[str, Any]) -> int:
    """Return the number of packages that the advisory service knows."""
    return sum("skip_reason" not in package for package in report["dependencies"])


def _install(folder: Path) -> Path | None:
    """Create an environment with pip-audit; return its interpreter, or None if that failed."""
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", _PIP_AUDIT],
    ):
        if _run(command) is None:
            return None
    return python


def _audit(python: Path, pins: Path) -> Mapping[str, Any]:
    flags = ["--no-deps", "--disable-pip", "--timeout", "5", "--format", "json"]
    done = _run([str(python), "-m", "pip_audit", "-r", str(pins), *flags], codes=(0, 1))
    try:
        report = json.loads(done or "")
    except ValueError:
        return {"dependencies": []}
    return report if isinstance(report, dict) else {"dependencies": []}


def _run(command: list[str], *, codes: tuple[int, ...] = (0,)) -> str | None:
    """Return the output of a command, or None if it failed or took too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode in codes else None


if __name__ == "__main__":
    sys.exit(main())
