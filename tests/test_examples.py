"""Every example runs as a user would run it, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAYS = {
    "quickstart.py": "cached prefix of the second request",
    "chat_session.py": "sent ['5']",
    "openai_client.py": "cached",
    "batch.py": "q0",
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_the_example_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, f"examples/{name}"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
