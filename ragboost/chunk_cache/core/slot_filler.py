"""Fill an engine's KV cache from stored chunks, and take chunks out of it. The cache is an array of
slots, one token each. Does not know an engine: a subclass reads and writes its slots."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from ragboost.chunk_cache.core.fill import FilledPrompt, FillSteps, fill_steps, keep_measured
from ragboost.chunk_cache.core.fill_budget import FillSpeed
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.nested_model import NestedModel
from ragboost.chunk_cache.model.pace import Pace, advance
from ragboost.chunk_cache.model.request_cache import RequestLayer
from ragboost.chunk_cache.store.chunk import KV, ChunkKV
from ragboost.chunk_cache.store.keys import PUBLIC, owner_prefix, tokens_digest

logger = logging.getLogger(__name__)


class SlotFiller(ABC):
    """Chunk reuse over one engine's KV cache; a nested pass may compute `rows` tokens."""

    def __init__(self, model: NestedModel, *, settings: EngineChunkSettings, rows: int) -> None:
        settings.check_model(model)
        self.model = model
        self.library = ChunkLibrary.of(
            model, settings.make_store(), has_public=bool(settings.public_key)
        )
        self.backend = settings.backend
        # Ranks must decide alike, and their clocks differ: they fill whatever is stored.
        is_weighed = settings.fill == "faster" and model.ranks.size == 1
        self.speed = FillSpeed() if is_weighed else None
        self._fill_s: WeakKeyDictionary[FillSteps, float] = WeakKeyDictionary()  # so far
        self._pace = Pace(rows)
        self._pass_began, self._pass_tokens = 0.0, 0  # of the engine's last pass
        self._is_pass_sample = False  # of the speed of computing

    @abstractmethod
    def read_layer(self, number: int, slots: torch.Tensor) -> KV:
        """Return copies of keys and values, (1, kv heads, slots, head_dim)."""

    @abstractmethod
    def write_layer(self, number: int, kv: KV, slots: torch.Tensor) -> None: ...

    def ordered(self) -> AbstractContextManager[None]:
        """Return a context whose work on the device runs between the engine's forward passes."""
        return nullcontext()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def read(
        self, tokens: Sequence[int], slots: torch.Tensor, *, is_exact: bool = False
    ) -> ChunkKV:
        start = len(tokens) - len(slots)
        return ChunkKV(
            tuple(tokens[start:]),
            base=start,
            layers=tuple(self.read_layer(n, slots) for n in range(self.model.num_layers)),
            regime=self.library.regime,
            length=len(tokens),
            exact_after=tokens_digest(tokens[:start]) if is_exact else None,
        )

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def write(self, layers: Sequence[RequestLayer], slots: torch.Tensor, *, start: int) -> None:
        """Write the positions of a dense cache from `start` on, as many as there are slots."""
        stop = start + len(slots)
        for number, dense in enumerate(layers):
            kv = dense.keys[:, :, start:stop], dense.values[:, :, start:stop]
            self.write_layer(number, kv, slots)

    def begin(self, plan: PromptPlan, prefix_slots: torch.Tensor) -> FillSteps:
        """Return the filling of a prompt. Its first step reads the prefix from its slots; until
        `finish` nothing is written, and the prompt needs no other slots."""
        prefix = (
            self.read(plan.tokens[: plan.prefix_tokens], prefix_slots)
            if plan.prefix_tokens
            else None
        )
        filled = yield from fill_steps(
            self.model, plan, prefix=prefix, backend=self.backend, pace=self._pace
        )
        return filled

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def advance(self, steps: FillSteps, *, rows: int | None) -> FilledPrompt | None:
        """Continue a filling for about this many rows; return its result once it has ended."""
        begin = time.perf_counter()
        with self.ordered():
            filled = advance(steps, self._pace, rows=rows)
        seconds = time.perf_counter() - begin
        self._fill_s[steps] = so_far = self._fill_s.get(steps, 0.0) + seconds
        self.library.fill_seconds += seconds
        if filled is None:
            return None
        self.library.num_fills += 1
        return replace(filled, seconds=so_far)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def finish(self, plan: PromptPlan, filled: FilledPrompt, slots: torch.Tensor) -> None:
        """Write a filled prompt's last tokens into slots, and measurements into the store."""
        if self.speed is not None and filled.influence is None:
            self.speed.filling.add(plan.num_to_compute(self.model.num_layers), filled.seconds)
        with self.ordered():
            self.write(filled.cache.layers, slots, start=plan.stop - len(slots))
            keep_measured(self.model, self.library, plan, filled)
            filled.cache.layers.clear()

    def note_pass(self, num_tokens: int, *, began: float, is_sample: bool = True) -> None:
        """Note a pass of the engine; `is_sample`: it computes a prompt, and no filling is in its
        time."""
        self._pass_began, self._pass_tokens, self._is_pass_sample = began, num_tokens, is_sample

    def end_pass(self) -> None:
        """Note the time of the engine's last pass where that is over when it returns; on an
        accelerator it is once a chunk of it was copied."""
        if self.model.device.type == "cpu" and self._pass_tokens > 0:
            self._pass_seconds()

    def _pass_seconds(self) -> float:
        seconds = time.perf_counter() - self._pass_began
        if self.speed is not None and self._is_pass_sample:
            self.speed.computing.add(self._pass_tokens, seconds)
        self._is_pass_sample = False  # the next chunk of it comes later
        return seconds

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def capture(self, chunk: ChunkCapture, slots: torch.Tensor) -> ChunkKV:
        """Copy a chunk into the store; if the engine's pass has computed it, with its share of the
        time."""
        with self.ordered():
            kv: ChunkKV = self.read(chunk.tokens, slots, is_exact=chunk.is_exact)
            kv = kv.to(torch.device("cpu"))
            if self._pass_tokens > 0:
                seconds = self._pass_seconds()
                if chunk.is_timed:
                    kv = replace(kv, compute_s=seconds * len(slots) / self._pass_tokens)
            self.library.add(chunk.key, kv, is_first=chunk.is_first)
            if self.library.has_public and chunk.key.startswith(owner_prefix(PUBLIC)):
                self.library.publish(chunk.key)
            return kv

    def check_weights(self) -> bool:
        """After new weights, find only what they compute; return True if no rank has any."""
        old, self.library = self.library, self.library.renewed(self.model)
        if self.library is not old:
            logger.info("the model has new weights: chunks of the old ones are not reused")
        return self.model.ranks.agree(self.library is old)

    def close(self) -> None:
        self.library.store.close()
