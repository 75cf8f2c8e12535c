"""Find out why requests miss the prefix cache, and count the causes. Does not know bodies."""

from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.hosted.lint.live import MAX_TEAMS, CacheBreak, PrefixWatch
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.threads import run_bytes
from ragboost.rewriting.parsed_request import ParsedRequest

_MAX_BYTES = 64 * 1024  # of both requests on the event loop: comparing these takes about 2 ms


class CacheBreaks:
    def __init__(self, settings: Settings, tenants: Tenants, metrics: Metrics) -> None:
        proxy = settings.proxy  # the teams of a file may become more
        num_teams = len(proxy.api_keys) if proxy.api_keys_file is None else MAX_TEAMS
        self._watch = PrefixWatch(settings.prices, num_teams=num_teams)
        self._tenants = tenants
        self._metrics = metrics

    async def observe(self, request: ParsedRequest) -> CacheBreak | None:
        """Return why a request is not the continuation of the one before; None if it is."""
        comparison = self._watch.observe(request)
        if comparison is None:
            return None
        found = await run_bytes(comparison.run, comparison.num_bytes, max_bytes=_MAX_BYTES)
        if found is None:
            return None
        model = request.tenant_key.model
        ratio = self._tenants.tokens_per_byte(model)
        cache_break = self._watch.report(found, model=model, tokens_per_byte=ratio)
        if cache_break is not None:
            self._metrics.count_cache_break(str(found.cause), lost_tokens=cache_break.lost_tokens)
        return cache_break
