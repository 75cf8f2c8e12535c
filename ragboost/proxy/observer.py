"""Look at each request: its arm of a hold-out, why it is not the continuation of the one before,
what varies before its documents, and what these would have found cached in the client's order.

Knows parsed requests and settings. Does not know backends, or how requests are forwarded.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.config import Settings
from ragboost.errors import RagBoostError
from ragboost.hosted.lint.live import MAX_TEAMS, CacheBreak, PrefixWatch, PromptComparison
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.request_log import describe
from ragboost.proxy.records import Observation
from ragboost.rewriting.parsed_request import ParsedRequest, run_bytes
from ragboost.rewriting.rewriter import Rewriting
from ragboost.rewriting.varying_piece import VaryingPiece, VaryingPieces, move_piece
from ragboost.tokens.chat_template import ChatTemplate
from ragboost.wires.body import num_instructions

Parse = Callable[[bytes], ParsedRequest]
_MAX_BYTES = 64 * 1024  # of both requests on the event loop: comparing these takes about 2 ms
_ALL = 256  # requests of which all orders are compared, so that there are figures from the first on
_SAMPLED = "0"  # first digit of the keys of sampled documents
_SAMPLE = 1 / 16


class RequestObserver:
    """Observations of the latest requests of one app, over all teams."""

    def __init__(self, settings: Settings, tenants: Tenants, metrics: Metrics) -> None:
        self._pieces = VaryingPieces(max_messages=settings.session.max_sessions)
        proxy = settings.proxy  # the teams of a file may become more
        num_teams = len(proxy.api_keys) if proxy.api_keys_file is None else MAX_TEAMS
        template = ChatTemplate.beside(settings.tokens.tokenizer)
        self._watch = PrefixWatch(settings.prices, num_teams=num_teams, template=template)
        self._tenants = tenants
        self._metrics = metrics
        self._is_recorded = proxy.record is not None
        self._is_shadow = proxy.shadow
        self._is_moved = settings.ordering.move_varying and not proxy.shadow
        self._num_compared = 0  # requests whose orders were, or might have been

    def varying(self, team: str) -> list[VaryingPiece]:
        """Return what varies in a team's requests and is not moved, the longest pieces first."""
        pieces = self._pieces.of_team(team)
        return [piece for piece in pieces if piece.span is None or not self._is_moved]

    async def observe(
        self, request: ParsedRequest, parse: Parse, *, is_whole: bool
    ) -> tuple[ParsedRequest, Observation]:
        """Learn from a request; return the request to send, and what is seen: its piece that varies
        is moved if that is wanted and possible.

        Args:
            parse: parses a body as the request's was.
            is_whole: the client sent the conversation, so that it is compared and may be changed.
        """
        comparison = self._watch.observe(request, kind=request.kind) if is_whole else None
        cache_break = None
        if comparison is not None:
            cache_break = await self._compare(comparison, request.tenant_key.model)
        piece, record = self._pieces.observe(request), None
        if self._is_recorded:
            tokens = self._tenants.get(request.tenant_key).tokens
            record = describe(request, piece, tokens)
        seen = Observation(cache_break, piece, record)
        if piece is None or not (is_whole and self._is_moved):
            return request, seen
        moved = await self._move(request, piece, parse)
        return (request, seen) if moved is None else (moved, seen._replace(varying=None))

    def compare_orders(self, result: Rewriting, tenant: Tenant, backend: str) -> None:
        """Compare the order of a boosted request with the client's, in models of the same prefix
        cache; of a conversation only the first turn. The caller has locked the tenant.

        Of the first requests it takes all, then those whose first document is sampled by its key:
        in the client's order only requests with the same first document share a prefix, so that
        such a sample finds what all requests would. Its cache is as much smaller. In shadow mode it
        takes all.
        """
        context = result.context
        if context is None or context.turn > 1 or not context.retrieved:
            return
        is_all = self._is_shadow or self._num_compared < _ALL
        self._num_compared += 1
        if not (is_all or context.retrieved[0].key.startswith(_SAMPLED)):
            return
        original = tenant.original(backend, share=1 if is_all else _SAMPLE)
        with suppress(RagBoostError):  # a broken model of what was not sent harms nobody
            sent = original.record(context.retrieved, prompt_prefix=result.prompt_prefix)
            self._metrics.count_orders(context, sent)

    async def _compare(self, comparison: PromptComparison, model: str) -> CacheBreak | None:
        max_bytes = _MAX_BYTES if comparison.template is None else 0  # rendering takes longer
        found = await run_bytes(comparison.run, comparison.num_bytes, max_bytes=max_bytes)
        ratio = self._tenants.tokens_per_byte(model)
        cache_break = self._watch.report(comparison, found, model=model, tokens_per_byte=ratio)
        if cache_break is not None:
            cause, lost = str(cache_break.cause), cache_break.lost_tokens
            self._metrics.count_cache_break(cause, lost_tokens=lost)
        return cache_break

    async def _move(
        self, request: ParsedRequest, piece: VaryingPiece, parse: Parse
    ) -> ParsedRequest | None:
        def work() -> ParsedRequest | None:
            raw = move_piece(request, piece)
            return None if raw is None else parse(raw)

        moved, found = await run_bytes(work, len(request.body.raw)), request.found
        # Other documents: the shape would read the piece as one of them.
        if not (moved and moved.found and found and moved.found.keys == found.keys):
            self._pieces.keep_in_place(request)
            return None
        return replace(moved, arm=request.arm, is_boost_wanted=request.is_boost_wanted)


def with_arm(request: ParsedRequest, *, share: float) -> ParsedRequest:
    """Return a request in its arm, unless there are no documents to boost, or no hold-out.

    One that is held out is not planned with others either. All requests of a conversation have one
    arm, in every process: it follows from the conversation's name, else from the tenant and the
    messages up to the first that is no instruction.

    Args:
        share: of the conversations that are boosted, from 0 to 1.
    """
    if share >= 1 or request.found is None or not request.is_boost_wanted:
        return request
    names = [request.session] if request.session is not None else request.tenant_key
    parts = [name.encode("utf-8", "surrogatepass") for name in names]
    if request.session is None:
        parts += _beginning(request)
    digest = hashlib.sha256(b"\0".join(parts)).digest()
    is_boosted = int.from_bytes(digest[:8], "big") < share * 2**64
    return replace(request, is_boost_wanted=is_boosted, arm="boosted" if is_boosted else "held_out")


def _beginning(request: ParsedRequest) -> list[bytes]:
    """Return the part of a body that every later turn of its conversation resends."""
    body = request.body
    messages = body.fields.get(body.list_name) or ()
    return body.message_digests[: num_instructions(messages) + 1] or [body.raw]
