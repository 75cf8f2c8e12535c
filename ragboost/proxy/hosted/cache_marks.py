"""Mark request bodies for the prompt caches of hosted APIs, where the caller has set no mark.

Breakpoints are chosen by expected value: what reading will save, less what writing costs.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ragboost.booster.context import Context
from ragboost.config import PriceSettings, Settings
from ragboost.proxy.hosted.prompt_blocks import PromptBlock, prompt_blocks
from ragboost.proxy.hosted.receipts import find_price
from ragboost.proxy.hosted.reuse_table import ReuseTable
from ragboost.requests.json_body import decode_message
from ragboost.requests.wires.body import Path, at_path, put
from ragboost.requests.wires.providers import PROMPT_CACHES, MarkStyle, PromptCache
from ragboost.requests.wires.registry import CONTENTS
from ragboost.util.bounded_map import BoundedMap


class BreakpointPlace(NamedTuple):
    tokens: int  # of the prompt before it
    gain: float  # that each of them is expected to save, in the price of an uncached token


class BreakpointChoice(NamedTuple):
    """The chosen places and what they are worth."""

    places: tuple[int, ...]  # indices, ascending
    value: float  # in the price of an uncached token


def expected_gain(uses: float, in_time: float, *, read: float, write: float) -> float:
    """Return what a cached token is expected to save, in the price of an uncached one.

    Of `uses` later prompts, the share `in_time` saves the difference to the price of reading; one
    that comes too late writes again.
    """
    return uses * max(0.0, in_time * (1 - read) - (1 - in_time) * (write - 1))


def choose_breakpoints(
    places: Sequence[BreakpointPlace], *, max_places: int, cached_tokens: int, write: float
) -> BreakpointChoice:
    """Choose the places with the greatest expected value; none if no choice is worth its cost.

    A later prompt reads up to the last breakpoint that it shares. All tokens up to the last one are
    written, except those that are cached: further breakpoints before it cost nothing. Places ascend
    by `tokens`; `write` is the price of a written token as a multiple of an uncached one.
    """
    gains = [place.gain for place in places]
    none: tuple[int, ...] = ()
    # The best choice that ends at each place, and its value before the cost of writing.
    ending: list[tuple[float, tuple[int, ...]]] = [
        (gains[at] * place.tokens, (at,)) for at, place in enumerate(places)
    ]
    best = BreakpointChoice(none, 0.0)
    for _ in range(max_places):
        for at, (value, chosen) in enumerate(ending):
            written = max(0, places[at].tokens - cached_tokens)
            if (worth := value - (write - 1) * written) > best.value:
                best = BreakpointChoice(chosen, worth)
        ending = [
            max(
                (
                    (value + gains[at] * (place.tokens - places[before].tokens), (*chosen, at))
                    for before, (value, chosen) in enumerate(ending[:at])
                ),
                default=(float("-inf"), none),
            )
            for at, place in enumerate(places)
        ]
    return best


_MAX_MARKS = 4
_MAX_PLACES = 40  # considered; choosing takes their square
_MAX_KEYS = 50_000


def mark_style(settings: Settings) -> MarkStyle:
    """Return the style of `backend.cache_marks`; with `stable = "safe"` and where that is not set,
    the one that all backends take, by their addresses."""
    style = settings.backend.cache_marks
    if settings.stable == "off" or "cache_marks" in settings.backend.model_fields_set:
        return style
    hosts = {urlsplit(each.url).hostname for each in settings.backends or (settings.backend,)}
    return next((c.style for c in PROMPT_CACHES if hosts.issubset(c.hosts)), style)


def kept_s(settings: Settings) -> float:
    """Return for how many seconds the provider may keep a prefix, if `stable = "safe"`; or 0."""
    if settings.stable == "off":
        return 0.0
    style = mark_style(settings)
    ttls = [seconds for cache in PROMPT_CACHES if cache.style == style for seconds, _ in cache.ttls]
    return max([*ttls, settings.index.ttl_s or 0.0])


class CacheMarker:
    """Marks the requests of one app. Thread-safe."""

    def __init__(
        self,
        style: MarkStyle,
        prices: Sequence[PriceSettings] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prices = prices
        self._cache = next((cache for cache in PROMPT_CACHES if cache.style == style), None)
        ttls = [seconds for seconds, _ in self._cache.ttls] if self._cache else []
        self._table = ReuseTable(ttls, clock=clock)
        self._keys: BoundedMap[bytes, str] = BoundedMap(max_entries=_MAX_KEYS)
        self._lock = Lock()

    def mark(
        self,
        fields: Mapping[str, Any],
        context: Context | None,
        *,
        tenant: Sequence[str] = (),
        tokens_per_byte: float = 0.25,
    ) -> Mapping[str, Any]:
        """Return the body with marks, or as it is where the caller has set one.

        `tenant` are names that keep equal prompts apart: model, salt, team.
        """
        seed = hashlib.sha256(repr(tuple(tenant)).encode()).digest()
        cache = self._cache
        if cache is not None and cache.key:
            return self._with_key(cache.key, fields, context, seed)
        blocks = prompt_blocks(fields, seed=seed) if cache is not None else []
        if cache is None or not blocks:
            return fields
        model = fields.get("model")
        price = find_price(self._prices, model if isinstance(model, str) else "")
        price = price or PriceSettings(model="any", input=1.0)
        with self._lock:
            self._table.observe(blocks)
            marks = self._choose(cache, blocks, price, tokens_per_byte)
        marked = _with_marks(fields, blocks, marks, cache)
        options = {name: value for name, value in cache.options.items() if name not in fields}
        return {**marked, **options} if options else marked

    def _with_key(
        self, name: str, fields: Mapping[str, Any], context: Context | None, seed: bytes
    ) -> Mapping[str, Any]:
        """Add one key for all requests with the same first document, and their later turns."""
        if fields.get(name) is not None:
            return fields
        first = _first_user_key(prompt_blocks(fields, seed=seed))
        entry = context.index_entry if context is not None else None
        with self._lock:
            if entry is not None and entry.documents:
                digest = hashlib.sha256(repr(entry.documents[0]).encode()).hexdigest()
                key: str | None = f"ragboost-{digest[:24]}"
                if first is not None and key is not None:
                    self._keys.put(first, key)
            else:
                key = self._keys.get(first) if first is not None else None
        return fields if key is None else {**fields, name: key}

    def _choose(
        self,
        cache: PromptCache,
        blocks: Sequence[PromptBlock],
        price: PriceSettings,
        tokens_per_byte: float,
    ) -> dict[int, int]:
        residents = [self._table.resident_ttl(block) for block in blocks]
        resident = max((at for at, ttl in enumerate(residents) if ttl is not None), default=None)
        cached = int(blocks[resident].end_bytes * tokens_per_byte) if resident is not None else 0
        old_ttl = residents[resident] if resident is not None else None
        can_end = [at for at, block in enumerate(blocks) if _can_end(cache, block)]
        usable = [
            at for at in can_end if blocks[at].end_bytes * tokens_per_byte >= price.min_tokens
        ]
        usable = usable[: _MAX_PLACES // 4] + usable[_MAX_PLACES // 4 :][-_MAX_PLACES * 3 // 4 :]
        best, best_ttl = BreakpointChoice((), 0.0), 0
        # A mark for a longer time must stand before those for a shorter time.
        for ttl in range(len(cache.ttls) if old_ttl is None else old_ttl + 1):
            choice = choose_breakpoints(
                [
                    self._place(
                        blocks[at],
                        ttl if resident is None or old_ttl is None or at > resident else old_ttl,
                        price,
                        tokens_per_byte,
                    )
                    for at in usable
                ],
                max_places=_MAX_MARKS if resident is None else _MAX_MARKS - 1,
                cached_tokens=cached,
                write=_write_price(price, ttl),
            )
            if choice.value > best.value:
                best, best_ttl = choice, ttl
        marks = {usable[at]: best_ttl for at in best.places}
        if resident is not None and old_ttl is not None:
            marks = {at: old_ttl if at <= resident else ttl for at, ttl in marks.items()}
            if not any(resident <= at < resident + cache.lookback for at in marks):
                marks[resident] = old_ttl
            for at, old in enumerate(residents[: resident + 1]):
                if old is not None:
                    self._table.keep(blocks[at], old)  # read, which renews it
        for at, ttl in marks.items():
            if resident is None or at > resident:
                self._table.keep(blocks[at], ttl)
        return marks

    def _place(
        self, block: PromptBlock, ttl: int, price: PriceSettings, tokens_per_byte: float
    ) -> BreakpointPlace:
        uses, in_time = self._table.forecast(block, ttl)
        write = _write_price(price, ttl)
        gain = expected_gain(uses, in_time, read=price.cached_read, write=write)
        return BreakpointPlace(int(block.end_bytes * tokens_per_byte), gain)


def _write_price(price: PriceSettings, ttl: int) -> float:
    return price.write_1h if ttl else price.write


def _first_user_key(blocks: Sequence[PromptBlock]) -> bytes | None:
    """Return the hash of the prompt up to the end of the first message of the conversation."""
    messages = [b for b in blocks if b.place.field in CONTENTS and b.kind != "system"]
    first = messages[0].place.at if messages else None
    keys = [block.key for block in messages if block.place.at == first]
    return keys[-1] if keys else None


def _can_end(cache: PromptCache, block: PromptBlock) -> bool:
    return block.can_end and (cache.marks_all or block.place.field in CONTENTS)


def _with_marks(
    fields: Mapping[str, Any],
    blocks: Sequence[PromptBlock],
    marks: Mapping[int, int],
    cache: PromptCache,
) -> Mapping[str, Any]:
    """Set marks; a text that gets one becomes a list with one text block, which is the same."""
    changed = dict(fields)
    for index, ttl in marks.items():
        field, at, part = blocks[index].place
        path: Path = (field,) if at is None else (field, at)
        if field in CONTENTS and at is not None:
            changed = put(changed, path, decode_message(changed[field][at]))
            path = (*path, CONTENTS[field], *(() if part is None else (part,)))
        value = at_path(changed, path)
        mark = {cache.mark: dict(cache.ttls[ttl][1])}
        is_text = isinstance(value, str)
        new = [{"type": "text", "text": value, **mark}] if is_text else {**value, **mark}
        changed = put(changed, path, new)
    return changed
