"""RAGBoost makes the prompts of a RAG application share prefixes, without losing accuracy.

Names are imported on first use, so that `import ragboost` loads no web framework, torch or zmq.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # read by the build, too

if TYPE_CHECKING:
    from ragboost.booster import Booster as Booster
    from ragboost.booster import Session as Session
    from ragboost.booster.context import Context as Context
    from ragboost.booster.context import Plan as Plan
    from ragboost.config import Settings as Settings
    from ragboost.errors import RagBoostError as RagBoostError
    from ragboost.proxy.app import create_app as create_app
    from ragboost.types import Document as Document
    from ragboost.types import Hint as Hint
    from ragboost.types import Request as Request

_HOME = {
    "Booster": "booster",
    "Context": "booster.context",
    "Document": "types",
    "Hint": "types",
    "Plan": "booster.context",
    "RagBoostError": "errors",
    "Request": "types",
    "Session": "booster",
    "Settings": "config",
    "create_app": "proxy.app",
}
__all__ = [  # sorted and complete, checked by tests/test_exported_members.py
    "Booster",
    "Context",
    "Document",
    "Hint",
    "Plan",
    "RagBoostError",
    "Request",
    "Session",
    "Settings",
    "__version__",
    "create_app",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ragboost' has no attribute {name!r}")
    return getattr(import_module(f"ragboost.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
