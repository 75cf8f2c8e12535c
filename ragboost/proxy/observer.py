"""Look at each request: its arm of a hold-out, why it is not the continuation of the one before,
and what its documents would have found cached in the client's order.

Knows parsed requests and settings. Does not know backends, or how requests are forwarded.
"""

import hashlib
from contextlib import suppress
from dataclasses import replace

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.config import Settings
from ragboost.errors import RagBoostError
from ragboost.proxy.hosted.live import MAX_TEAMS, CacheBreak, PrefixWatch, PromptComparison
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.request_log import describe
from ragboost.proxy.records import Observation
from ragboost.requests.parsed_request import ParsedRequest, run_bytes
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.wires.body import num_instructions

_MAX_BYTES = 64 * 1024  # of both requests on the event loop: comparing these takes about 2 ms
_ALL = 256  # requests of which all orders are compared, so that there are figures from the first on
_SAMPLED = "0"  # first digit of the keys of sampled documents
_SAMPLE = 1 / 16


class RequestObserver:
    """Observations of the latest requests of one app, over all teams."""

    def __init__(self, settings: Settings, tenants: Tenants, metrics: Metrics) -> None:
        proxy = settings.proxy  # the teams of a file may become more
        num_teams = len(proxy.api_keys) if proxy.api_keys_file is None else MAX_TEAMS
        template = ChatTemplate.beside(settings.tokens.tokenizer)
        self._watch = PrefixWatch(num_teams=num_teams, template=template)
        self._tenants = tenants
        self._metrics = metrics
        self._is_recorded = proxy.record is not None
        self._is_shadow = proxy.shadow
        self._num_compared = 0  # requests whose orders were, or might have been
        self._compared_tokens = self._gained_tokens = 0  # of the documents of those that were

    async def observe(self, request: ParsedRequest, *, is_whole: bool) -> Observation:
        """Learn from a request, and return what is seen.

        Args:
            is_whole: the client sent the conversation, so that it is compared.
        """
        comparison = self._watch.observe(request, kind=request.kind) if is_whole else None
        cache_break = record = None
        if comparison is not None:
            cache_break = await self._compare(comparison, request.tenant_key.model)
        if self._is_recorded:
            record = describe(request, self._tenants.get(request.tenant_key).tokens)
        return Observation(cache_break, record)

    def order_gain(self, result: Rewriting, tenant: Tenant, backend: str) -> float:
        """Return how many more tokens of a boosted request's documents are cached in its order than
        in the client's, in models of the same prefix cache; of a conversation only the first turn
        is ordered. The caller has locked the tenant.

        Of the first requests it takes all, then those whose first document is sampled by its key:
        in the client's order only requests with the same first document share a prefix, so that
        such a sample finds what all requests would. Its cache is as much smaller. Others are taken
        to gain the same share of their tokens. In shadow mode it takes all.
        """
        context = result.context
        if context is None or context.turn > 1 or not context.retrieved:
            return 0.0
        is_all = self._is_shadow or self._num_compared < _ALL
        self._num_compared += 1
        if not (is_all or context.retrieved[0].key.startswith(_SAMPLED)):
            tokens = sum(tenant.tokens.count_documents(context.retrieved))
            return tokens * self._gained_tokens / max(1, self._compared_tokens)
        original = tenant.original(backend, share=1 if is_all else _SAMPLE)
        with suppress(RagBoostError):  # a broken model of what was not sent harms nobody
            sent = original.record(context.retrieved, prompt_prefix=result.prompt_prefix)
            gain = context.predicted_cached_tokens - sent.cached_tokens
            self._compared_tokens += sum(sent.tokens)
            self._gained_tokens += gain
            return gain
        return 0.0

    async def _compare(self, comparison: PromptComparison, model: str) -> CacheBreak | None:
        max_bytes = _MAX_BYTES if comparison.template is None else 0  # rendering takes longer
        found = await run_bytes(comparison.run, comparison.num_bytes, max_bytes=max_bytes)
        ratio = self._tenants.tokens_per_byte(model)
        cache_break = self._watch.report(comparison, found, tokens_per_byte=ratio)
        if cache_break is not None:
            cause, lost = str(cache_break.cause), cache_break.lost_tokens
            self._metrics.count_cache_break(cause, lost_tokens=lost)
        return cache_break


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
    is_boosted = int.from_bytes(conversation_digest(request)[:8], "big") < share * 2**64
    return replace(request, is_boost_wanted=is_boosted, arm="boosted" if is_boosted else "held_out")


def conversation_digest(request: ParsedRequest) -> bytes:
    """Return a digest that all requests of a conversation have, and hardly any other."""
    names = [request.session] if request.session is not None else request.tenant_key
    parts = [name.encode("utf-8", "surrogatepass") for name in names]
    if request.session is None:
        parts += _beginning(request)
    return hashlib.sha256(b"\0".join(parts)).digest()


def _beginning(request: ParsedRequest) -> list[bytes]:
    """Return the part of a body that every later turn of its conversation resends."""
    body = request.body
    messages = body.fields.get(body.list_name) or ()
    return body.message_digests[: num_instructions(messages) + 1] or [body.raw]
