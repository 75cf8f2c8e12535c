"""A pre-call hook for the LiteLLM proxy: the extra `litellm`.

In its configuration: `callbacks: ["ragboost.integrations.litellm.proxy_handler_instance"]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragboost.errors import import_extra

if TYPE_CHECKING:
    from ragboost.integrations.litellm.hook import BoostHook as BoostHook

__all__ = ["BoostHook"]


def __getattr__(name: str) -> Any:
    if name not in ("BoostHook", "proxy_handler_instance"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_extra("litellm", extra="litellm")
    hook = import_module(f"{__name__}.hook").BoostHook
    if name == "BoostHook":
        return hook
    # LiteLLM imports an instance by name: make one with the settings of environment and file.
    return hook(import_module("ragboost.config").load_settings({}))
