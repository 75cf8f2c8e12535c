"""Stores of the chat-session API's sessions, one file per store.

A store called `x` in the setting `session.store` is the class `XStore` in the file `x.py`.
"""

from collections.abc import Callable
from importlib import import_module

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError
from ragboost.sessions.store import ChatSession, ChatSessionStore, Page

__all__ = ["ChatSession", "ChatSessionStore", "Page", "make_store", "store_class"]


def store_class(settings: SessionSettings) -> type[ChatSessionStore]:
    if settings.url is not None and settings.store != "redis":
        raise ConfigError(f'session.url needs session.store = "redis", got {settings.store!r}')
    module = import_module(f"ragboost.sessions.{settings.store}")
    kind: type[ChatSessionStore] = getattr(module, f"{settings.store.capitalize()}Store")
    return kind


def make_store(
    settings: SessionSettings, *, on_failure: Callable[[], None] | None = None
) -> ChatSessionStore:
    """Return the store that the settings name, not yet opened."""
    return store_class(settings)(settings, on_failure=on_failure)
