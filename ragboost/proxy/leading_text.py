"""Look at the text before the documents of each request: what varies is named, or moved.

Knows parsed requests and settings. Does not know backends.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.hosted.lint.live import CacheBreak
from ragboost.proxy.observability.request_log import describe
from ragboost.proxy.threads import run_bytes
from ragboost.proxy.upstream.relay import UpstreamRequest
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.rewriting.varying_piece import VaryingPiece, VaryingPieces, move_piece
from ragboost.types import RecordedRequest

Parse = Callable[[bytes], ParsedRequest]


class ObservedRequest(NamedTuple):
    request: ParsedRequest  # to be sent
    varying: VaryingPiece | None  # that it is sent with, before the documents
    record: RecordedRequest | None  # of what the client sent, for `proxy.record`

    def note(self, upstream: UpstreamRequest, cache_break: CacheBreak | None) -> UpstreamRequest:
        return upstream._replace(varying=self.varying, record=self.record, cache_break=cache_break)


class LeadingText:
    """The text before documents, over all requests of one app."""

    def __init__(self, settings: Settings, tenants: Tenants) -> None:
        self._pieces = VaryingPieces(max_messages=settings.session.max_sessions)
        self._tenants = tenants
        self._is_recorded = settings.proxy.record is not None
        self._is_moved = settings.ordering.move_varying and not settings.proxy.shadow

    def of_team(self, team: str) -> list[VaryingPiece]:
        """Return what varies in a team's requests and is not moved, the longest pieces first."""
        pieces = self._pieces.of_team(team)
        return [piece for piece in pieces if piece.span is None or not self._is_moved]

    async def observe(
        self, request: ParsedRequest, parse: Parse, *, may_move: bool
    ) -> ObservedRequest:
        """Learn from a request, and move its piece that varies if that is wanted and possible.

        Args:
            parse: parses a body as the request's was.
        """
        piece = self._pieces.observe(request)
        record = None
        if self._is_recorded:
            record = describe(request, piece, self._tenants.get(request.tenant_key).tokens)
        if piece is not None and may_move and self._is_moved:
            moved = await self._move(request, piece, parse)
            if moved is not None:
                return ObservedRequest(moved, None, record)
        return ObservedRequest(request, piece, record)

    async def _move(
        self, request: ParsedRequest, piece: VaryingPiece, parse: Parse
    ) -> ParsedRequest | None:
        raw = move_piece(request, piece)
        if raw is None:
            return None
        moved = await run_bytes(partial(parse, raw), len(raw))
        if moved.found is None or request.found is None or moved.found.keys != request.found.keys:
            self._pieces.keep_in_place(request)  # the shape would read it as a document
            return None
        moved.client_links, moved.arm = request.links, request.arm
        return moved
