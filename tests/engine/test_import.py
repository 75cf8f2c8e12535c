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
        'it comes with: pip install "ragboost-middleware[engine]"'
    )


def test_command_line_without_torch_is_one_sentence() -> None:
    done = run(BLOCKED + "sys.argv = ['ragboost', 'engine']\nfrom ragboost.cli import main\nmain()")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        'ragboost: torch is not installed; it comes with: pip install "ragboost-middleware[engine]"'
    )
    assert "Traceback" not in done.stderr


def test_a_wrong_model_is_named_before_torch_is_loaded() -> None:
    for command in (["engine"], ["serve", "--embedded"]):
        arguments = ["ragboost", *command, "--model", "nothing-of-this-name"]
        done = run(BLOCKED + f"sys.argv = {arguments}\nfrom ragboost.cli import main\nmain()")
        assert done.returncode == 2
        said = done.stderr.strip().splitlines()[-1]
        assert "nothing-of-this-name is no directory, no name on the hub such as" in said
        assert "smollm2-135m" in said
