"""Recognise the conversation of a request that names none, for the endpoints.

Joins payloads and credentials with `Histories`. What shadow mode would have sent is remembered
apart from what was sent. Does not rewrite.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ragboost.config import Settings
from ragboost.formats import Found
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.rewriting.body import JsonBody
from ragboost.rewriting.conversations import HistoryDelta, Link, SentHistory
from ragboost.rewriting.histories import ChainMatch, Histories, history_links
from ragboost.rewriting.offload import call, is_large
from ragboost.rewriting.tenants import TenantKey

# An application's users may share its credentials: what tells them apart counts as well.
_END_USER = ("user", "safety_identifier")


class Known(NamedTuple):
    """What is known of a history that has no name.

    Attributes:
        match: of what was sent; None: it is not looked for.
        tried: of what shadow mode would have sent.
        apart: the documents that the request gives beside its messages.
    """

    match: ChainMatch | None = None
    tried: ChainMatch | None = None
    apart: bytes = b""


class Recognition:
    """The histories of one app."""

    def __init__(self, settings: Settings) -> None:
        self._is_stateless = settings.session.stateless
        self._sent = _histories(settings)
        self._tried = _histories(settings) if settings.proxy.shadow else None

    async def recognise(
        self,
        payload: JsonBody,
        key: TenantKey,
        user: str,
        *,
        found: Found | None,
        past: SentHistory | None,
    ) -> Known:
        """Look for the history of a request that names no conversation.

        Args:
            payload: its body.
            key: its tenant.
            user: its credentials.
            found: its documents.
            past: what was sent, where the caller keeps it: only what shadow mode would have sent is
                looked for then.
        """
        is_wanted = self._is_stateless if past is None else self._tried is not None
        if not is_wanted or not payload.messages:
            return Known()
        parts = [user, *key, *(str(payload.body.get(name, "")) for name in _END_USER)]
        scope = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
        links = await call(
            partial(_links, payload, scope),
            in_thread=is_large(payload.raw),
        )
        apart = _documents_apart(payload, found)
        match = self._sent.match(links, apart=apart) if past is None else None
        tried = self._tried.match(links, apart=apart) if self._tried is not None else None
        return Known(match, tried, apart)

    def add(
        self, known: Known, learned: HistoryDelta, *, tried: HistoryDelta, is_final: bool
    ) -> Known:
        """Keep what a request added to its history; `known` with the history's new hashes.

        Args:
            known: what was recognised.
            learned: what was sent.
            tried: what shadow mode would have sent.
            is_final: the same request is to be sent the same way again.
        """
        match, apart = known.match, known.apart
        if match is not None:
            digest = self._sent.add(match, learned, apart=apart, is_final=is_final)
            match = match._replace(digest=digest)
        other = known.tried
        if other is not None and self._tried is not None:
            other = other._replace(digest=self._tried.add(other, tried, apart=apart))
        return Known(match, other, apart)

    def answered(
        self,
        match: ChainMatch | None,
        tried: ChainMatch | None,
        answers: Sequence[Mapping[str, Any]],
    ) -> None:
        """Take in the assistant's messages, each of them a way in which the history may go on."""
        if match is not None:
            self._sent.answered(match, answers)
        if tried is not None and self._tried is not None:
            self._tried.answered(tried, answers)


def _links(payload: JsonBody, scope: bytes) -> list[Link]:
    return history_links(payload.body["messages"], payload.message_digests, scope=scope)


def _histories(settings: Settings) -> Histories:
    return Histories(
        max_sessions=settings.session.max_sessions,
        max_bytes=settings.session.max_bytes,
        ttl_s=settings.session.ttl_s,
    )


def _documents_apart(payload: JsonBody, found: Found | None) -> bytes:
    """Names the documents that are given beside the messages and rendered into them, with all that
    is said about them; their texts have been hashed for their keys."""
    if FIELD not in payload.body or found is None:
        return b""
    fields = ragboost_fields(payload.body)
    if not fields.get("documents"):
        return b""
    others = {name: value for name, value in fields.items() if name != "documents"}
    keys = [document.key for document in found.documents]
    return repr((keys, others)).encode("utf-8", "surrogatepass")
