"""An unfinished request that mentions chunks, as the scheduler of any engine tracks it. Does not
know an engine, whose scheduler adds its own states."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, find_loads, plan_prompt
from ragboost.chunk_cache.core.request import (
    PARAMS_KEY,
    EngineChunkRequest,
    PromptReport,
    TokenOrigins,
    in_namespace,
    read_request,
)
from ragboost.chunk_cache.store.load_table import MAX_WAIT_S


class ChunkCapture(NamedTuple):
    """A chunk to take out of the engine's cache, once the prompt is computed up to its end."""

    key: str  # under which it is stored
    tokens: list[int]  # of the prompt, up to the chunk's end
    start: int  # position of the chunk
    is_exact: bool  # its KV equals that of an ordinary prefill
    is_first: bool  # no other chunk precedes it
    is_timed: bool = False  # the engine's last pass has computed all of it


@dataclass(slots=True, eq=False)
class ReusingRequest:
    request_id: str
    options: EngineChunkRequest
    tokens: list[int]
    keys: dict[int, str]  # of the chunks worth keeping, by their number
    uncaptured: set[int]  # numbers of the chunks that may still be taken out of the cache
    reply_to: Any  # where the API server waits for the report
    reason: str | None  # why it is computed exactly; None: it reuses chunks
    prefix_tokens: int = 0  # whose KV the engine held when it was last looked up
    arrived_at: float = field(default_factory=time.monotonic)

    @classmethod
    def read(
        cls,
        request_id: str,
        entry: Any,
        tokens: Sequence[int] | None,
        *,
        refusal: str | None,
        namespace: Sequence[str | None],
        library: ChunkLibrary,
        defaults: EngineChunkRequest,
        measurable_tokens: int | None,
    ) -> Self:
        """Read a request as it arrives; chunks that are not in memory start loading. `refusal`: why
        it is computed exactly, whatever it asks for. `namespace`: what keeps it apart in the prefix
        cache. `measurable_tokens`: of the longest chunk that can be measured; None: none can."""
        tokens = list(tokens or ())
        options = read_request({PARAMS_KEY: entry}, num_tokens=len(tokens), defaults=defaults)
        assert options is not None, "the entry is there"
        if options.measure and measurable_tokens is None:
            options = replace(options, reason="several_workers")
        elif options.measure and options.chunks:
            start, stop = options.chunks[-1]
            if measurable_tokens is not None and stop - start > measurable_tokens:
                options = replace(options, reason="chunk_too_long")
        if refusal is not None:
            options = replace(options, reason=refusal, chunks=())
        reply_to = entry.get("reply_to") if isinstance(entry, dict) else None
        return cls.begin(
            request_id, options, tokens, namespace=namespace, library=library, reply_to=reply_to
        )

    @classmethod
    def begin(
        cls,
        request_id: str,
        options: EngineChunkRequest,
        tokens: list[int],
        *,
        namespace: Sequence[str | None],
        library: ChunkLibrary,
        reply_to: Any = None,
    ) -> Self:
        options = in_namespace(options, *namespace)
        keys = find_chunks(options, tokens, library)
        if options.reason is None:
            library.store.prefetch(find_loads(options, keys, library))
        return cls(request_id, options, tokens, keys, set(keys), reply_to, options.reason)

    def awaits_chunks(self, library: ChunkLibrary, *, prefix_tokens: int) -> bool:
        """Return True while chunks behind the prefix are on their way into memory, and waiting is
        faster than computing; not for loads that later requests have started."""
        if time.monotonic() - self.arrived_at > MAX_WAIT_S:
            return False
        awaited: list[str] = []
        for number, key in self.keys.items():
            if self.options.chunks[number][1] > prefix_tokens:
                awaited += library.keys_to_load(key, self.options.place(number))
        return library.store.is_loading(awaited)

    def plan(self, library: ChunkLibrary, *, prefix_tokens: int) -> PromptPlan | str:
        return plan_prompt(
            self.options,
            self.tokens,
            prefix_tokens=prefix_tokens,
            keys=self.keys,
            library=library,
        )

    def forget_chunks(self) -> None:
        self.keys, self.uncaptured = {}, set()

    def keep_stored(self, plan: PromptPlan) -> None:
        """Take no chunk that fills the prompt out of it again: it would be approximate."""
        filled = [number for number, kv in enumerate(plan.stored) if kv is not None]
        self.uncaptured.difference_update(filled)

    def take_captures(
        self,
        library: ChunkLibrary,
        *,
        pass_start: int,
        num_computed: int,
        exact_stop: int | None,
    ) -> list[ChunkCapture]:
        """Return the chunks that are computed and not stored, or not as well, once each. The
        engine's pass has computed the tokens [pass_start, num_computed). `exact_stop`: tokens
        before the engine's first block with approximate KV."""
        # 0                  exact_stop           prefix_tokens             num_computed
        # |  exact chunks:   |  blocks of an      |  computed over           |  later steps
        # |  captured        |  equal request:    |  approximate KV:         |
        # |                  |  left alone        |  captured, not as exact  |
        found = []
        for number in sorted(self.uncaptured):
            start, stop = self.options.chunks[number]
            if stop > num_computed:
                break
            self.uncaptured.discard(number)
            is_first = number == 0
            key = library.slot(self.keys[number], is_first=is_first)
            is_exact = exact_stop is None or stop <= exact_stop
            if not is_exact and stop <= self.prefix_tokens:
                continue  # approximate blocks of an equal request
            if self.options.is_public and not (is_exact and self.options.reason != "not_alone"):
                continue  # it has seen another's text, or approximate KV
            if library.lacks(
                key, self.tokens[start:stop], base=start, is_exact=is_exact, is_first=is_first
            ):
                tokens, is_timed = self.tokens[:stop], start >= pass_start
                found.append(ChunkCapture(key, tokens, start, is_exact, is_first, is_timed))
        return found

    def report(self, origins: TokenOrigins | None, *, num_tokens: int) -> PromptReport:
        """Return what became of the prompt; without `origins` of a filling it was computed."""
        if origins is None:
            # After a preemption the prefix may cover generated tokens.
            exact = min(self.prefix_tokens, num_tokens)
            origins = TokenOrigins(exact=exact, computed=num_tokens - exact)
        return PromptReport(origins, self.reason)
