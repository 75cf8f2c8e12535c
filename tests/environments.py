"""Which packages the environment of a test has: some install only into one of their own.

`make test-integrations` makes that environment and runs the tests marked `own_environment` in it.
"""

import os
import sys
from importlib.util import find_spec

import pytest

own_environment = pytest.mark.own_environment
# The environment of `make test-integrations` has no torch: the Makefile says which Python has it.
ENGINE_PYTHON = os.environ.get("EMBEDDED_ENGINE_PYTHON", sys.executable)


def needs(package: str) -> None:
    """Skip the test, or the module, without the package; where all have to be there, fail."""
    if _is_installed(package):
        return
    reason = f"{package} is not installed here; make test-integrations has it"
    if "EMBEDDED_ENGINE_PYTHON" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
