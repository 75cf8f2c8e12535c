"""Follow a boosted request through the cache events of its engine, and learn from its end."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.booster.context import Context
from ragboost.booster.tenants import Tenant, bounded_name
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.requests.headers import RawHeaders, get_header, new_request_id
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.wires.usage import Usage

SESSION_FIELD = "session_id"
SESSION_HEADER = b"x-session-id"


class EngineRequestId(NamedTuple):
    name: str  # unique unless the client chose it
    is_generated: bool  # not from the client, so it must be added to body and headers

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: RawHeaders) -> "EngineRequestId":
        """Return the client's own id, if it is where engines look for it, or else a new one.

        An id that is too long to be kept, or that cannot be shown, stays in the body, and its
        events are not recognised.
        """
        extra = body.get("vllm_xargs")
        candidates = (
            body.get(SESSION_FIELD),
            extra.get(SESSION_FIELD) if isinstance(extra, dict) else None,
            get_header(headers, SESSION_HEADER),
        )
        name = next((value for value in candidates if isinstance(value, str) and value), None)
        if name is not None and bounded_name(name) != name:
            return cls(new_request_id(), False)
        return cls(new_request_id(), True) if name is None else cls(name, False)


class TrackedRequest:
    """A boosted request from dispatch to response; the caller has locked its tenant."""

    def __init__(
        self,
        follower: CacheFollower,
        tenant: Tenant,
        context: Context,
        result: Rewriting,
        *,
        engine_id: EngineRequestId | None,
    ) -> None:
        self.engine_id = engine_id
        self._name = engine_id.name if engine_id is not None else None
        self._follower = follower
        self._tenant = tenant
        self._context = context
        # Where its documents are; None in a later turn, whose documents are behind history.
        self._layout: PromptLayout | None = None
        if context.index_entry is not None:
            layout = PromptLayout.of(
                context,
                tenant.key,
                prompt_prefix=result.prompt_prefix,
                bytes_before=result.bytes_before,
                bytes_behind=result.bytes_after,
                is_measured=tenant.booster(follower.name).is_measured(context),
                counter=tenant.tokens,
            )
            cached = context.predicted_cached_tokens
            self._layout = follower.on_sent(self._name, layout, cached_tokens=cached)
        self._predicted_tokens = follower.predict(self._layout, context.predicted_cached_tokens)

    def is_at(self, backend: str) -> bool:
        """Return True unless it failed over to a backend for which nothing was predicted."""
        return backend == self._follower.name

    def predicted_tokens(self, cached_tokens: int) -> int:
        """Return what was predicted of the `cached_tokens` that the engine reported.

        Text before the documents may begin as another request's: of that the index knows nothing,
        and a report that ends there is right.
        """
        layout = self._layout
        if layout is None or layout.cached_documents(cached_tokens):
            return self._predicted_tokens
        return max(self._predicted_tokens, cached_tokens)

    async def report_usage(self, usage: Usage, *, cached_tokens: int) -> None:
        """Learn from the usage that its backend reported; it has reported `cached_tokens`."""
        layout, tenant = self._layout, self._tenant
        cached_tokens = min(max(cached_tokens, 0), usage.prompt_tokens)
        if layout is not None:
            tenant.tokens.correct(layout.prompt_tokens, usage.prompt_tokens)
            layout = layout.corrected(usage.prompt_tokens)
        async with tenant.lock:
            tenant.booster(self._follower.name).report_usage(
                self._context,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=cached_tokens,
                cached_document_tokens=layout.cached_documents(cached_tokens) if layout else None,
                reused_tokens=usage.reused_tokens,
            )

    async def forget_all(self) -> None:
        """Empty the index of its backend, which has no prefix cache."""
        async with self._tenant.lock:
            self._tenant.booster(self._follower.name).residency.clear()

    def report_end(self, usage: Usage | None, *, backend: str, is_computed: bool) -> None:
        if self._layout is None:
            return
        entry = self._context.index_entry
        if entry is not None and not (is_computed and self.is_at(backend)):
            self._follower.on_failure(self._name, self._layout, entry)
            return
        self._follower.on_response(
            self._name,
            self._layout,
            prompt_tokens=usage and usage.prompt_tokens,
            has_reused=usage is None or bool(usage.reused_tokens),
        )
