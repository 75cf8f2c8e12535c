"""Import the internals of an engine all at once, so that a missing one shows at the start."""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace


def import_internals(names_of: Mapping[str, str]) -> SimpleNamespace:
    """Return names, separated by spaces, of modules. Raises `ImportError` if one has moved."""
    found = {}
    for module, names in names_of.items():
        for name in names.split():
            try:
                found[name.strip("_")] = getattr(import_module(module), name)
            except AttributeError:
                raise ImportError(f"cannot import {name!r} from {module!r}") from None
    return SimpleNamespace(**found)
