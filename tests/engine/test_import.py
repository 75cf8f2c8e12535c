"""What importing the engine needs, and says."""

import subprocess
import sys

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_engine_without_torch_says_what_to_install() -> None:
    done = run(BLOCKED + "import ragboost.engine")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1] == (
        "ragboost.errors.MissingExtraError: torch is not installed; "
        "it comes with: pip install '.[engine]' in its clone"
    )


def test_command_line_without_torch_is_one_sentence() -> None:
    done = run(BLOCKED + "sys.argv = ['ragboost', 'engine']\nfrom ragboost.cli import main\nmain()")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "ragboost: torch is not installed; it comes with: pip install '.[engine]' in its clone"
    )
