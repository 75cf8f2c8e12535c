"""Skip tests whose packages are not installed; some packages need an environment of their own.

`make test-integrations` creates that environment and runs the tests marked `own_environment` in it.
"""

import os
import sys
from importlib.util import find_spec

import pytest

own_environment = pytest.mark.own_environment
# The environment of `make test-integrations` has no torch; the Makefile sets a Python that has it.
ENGINE_PYTHON = os.environ.get("EMBEDDED_ENGINE_PYTHON", sys.executable)


def needs(package: str) -> None:
    """Skip the test or module if the package is missing; fail under `make test-integrations`."""
    if _is_installed(package):
        return
    reason = f"{package} is not installed; `make test-integrations` installs it"
    if "EMBEDDED_ENGINE_PYTHON" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
