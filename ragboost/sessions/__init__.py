"""Stores of the chat-session API's sessions, one file per store."""

from ragboost.config import SessionSettings
from ragboost.sessions.base import ChatSession, ChatSessionStore, Page

__all__ = ["ChatSession", "ChatSessionStore", "Page", "make_store"]


def make_store(settings: SessionSettings) -> ChatSessionStore:
    """Return the store that the settings name, not yet opened."""
    if settings.store == "sqlite":
        from ragboost.sessions.sqlite import SqliteStore

        return SqliteStore(settings)
    if settings.store == "redis":
        from ragboost.sessions.redis import RedisStore

        return RedisStore(settings)
    from ragboost.sessions.memory import MemoryStore

    return MemoryStore(settings)
