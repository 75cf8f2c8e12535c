"""Stores of the chat-session API's sessions, one file per store."""

from collections.abc import Callable

from ragboost.config import SessionSettings
from ragboost.sessions.base import ChatSession, ChatSessionStore, Page

__all__ = ["ChatSession", "ChatSessionStore", "Page", "make_store"]


def make_store(
    settings: SessionSettings, *, on_failure: Callable[[], None] | None = None
) -> ChatSessionStore:
    """Return the store that the settings name, not yet opened.

    Args:
        settings: of the store.
        on_failure: called for every operation that fails.
    """
    if settings.store == "sqlite":
        from ragboost.sessions.sqlite import SqliteStore

        return SqliteStore(settings, on_failure=on_failure)
    if settings.store == "redis":
        from ragboost.sessions.redis import RedisStore

        return RedisStore(settings, on_failure=on_failure)
    from ragboost.sessions.memory import MemoryStore

    return MemoryStore(settings)
