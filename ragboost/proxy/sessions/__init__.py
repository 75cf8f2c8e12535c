"""Stores of the chat-session API's sessions: SQLite, in memory or in a file, and Redis."""

from collections.abc import Callable
from importlib import import_module

from ragboost.config import SessionSettings, Settings
from ragboost.errors import ConfigError
from ragboost.proxy.sessions.store import ChatSession, ChatSessionStore, Page, Transcript

__all__ = ["ChatSession", "ChatSessionStore", "Page", "Transcript", "make_store", "store_class"]

_MODULES = {"memory": "sqlite", "sqlite": "sqlite", "redis": "redis"}


def store_class(settings: SessionSettings) -> type[ChatSessionStore]:
    if settings.url is not None and settings.store != "redis":
        raise ConfigError(f'session.url needs session.store = "redis", got {settings.store!r}')
    module = import_module(f"ragboost.proxy.sessions.{_MODULES[settings.store]}")
    kind: type[ChatSessionStore] = getattr(module, f"{settings.store.capitalize()}Store")
    return kind


def make_store(
    settings: Settings, *, on_failure: Callable[[], None] | None = None
) -> ChatSessionStore:
    """Return the store that the settings name, not yet opened."""
    session, max_bytes = settings.session, settings.proxy.memory.chat_sessions
    return store_class(session)(session, max_bytes=max_bytes, on_failure=on_failure)
