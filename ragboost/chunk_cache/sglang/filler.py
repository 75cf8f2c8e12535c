"""Fill KV slots of a prompt from stored chunks, and take chunks out of SGLang's KV pool.

Knows the model, the pool and the store. Does not know requests or the radix tree.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ragboost.chunk_cache.core.fill import FilledPrompt, FillSteps, fill_steps
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.pace import Pace, advance
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.sglang.model import SGLangModel
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import tokens_digest

logger = logging.getLogger(__name__)


class SlotFiller:
    """Chunk reuse over one KV pool.

    Args:
        runner: SGLang's model runner, with the model loaded and the pool allocated.
        ranks: the processes that hold the model together; each stores the KV of its own heads.
        settings: our own.
        rows: maximum rows of one nested pass.

    Attributes:
        model: the model.
        library: the stored chunks.

    Raises:
        UnsupportedModelError: reuse is impossible with this model.
    """

    def __init__(
        self, runner: Any, *, ranks: Ranks, settings: EngineChunkSettings, rows: int
    ) -> None:
        self._runner, self._pool = runner, runner.token_to_kv_pool
        self.model = SGLangModel(runner, ranks=ranks)
        self.backend = make_backend(settings.backend)
        self._pace = Pace(rows)
        if ranks.size > 1 and settings.directory:
            logger.warning("several ranks keep chunks in memory only, not in `directory`")
            settings = replace(settings, directory="")  # what is loaded in time must be equal
        self.library = ChunkLibrary.of(self.model, settings.make_store())

    @property
    def num_passes(self) -> int:
        """Number of forward passes that SGLang has run."""
        return int(self._runner.forward_pass_id)

    def check_weights(self) -> bool:
        """Return True if the weights are the same on all ranks; else the stored chunks are
        forgotten."""
        old, self.library = self.library, self.library.renewed(self.model)
        return self.model.ranks.agree(self.library is old)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def begin(self, plan: PromptPlan, *, held: torch.Tensor) -> FillSteps:
        """Return the filling of a prompt. The KV of its prefix is copied at once, the other is
        written by `store`, so that the filling needs no slots until then.

        Args:
            plan: what to reuse.
            held: slots of the first `plan.held` tokens.
        """
        prefix = None
        if plan.held:
            with self._forward_stream():
                prefix = self.read(plan.tokens[: plan.held], held, start=0, is_exact=False)
        return fill_steps(self.model, plan, prefix=prefix, backend=self.backend, pace=self._pace)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def advance(self, steps: FillSteps, *, rows: int | None) -> FilledPrompt | None:
        """Continue a filling, see `advance`."""
        with self._forward_stream():
            return advance(steps, self._pace, rows=rows)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def store(self, plan: PromptPlan, filled: FilledPrompt, *, slots: torch.Tensor) -> None:
        """Write the KV of the last tokens before `plan.stop` into slots, as many as there are, and
        what was measured into the store."""
        with self._forward_stream():
            self.write(filled.cache.layers, slots, start=plan.stop - len(slots))
            filled.cache.layers.clear()
            if filled.measure is not None:
                begin, end = plan.request.chunks[-1]
                key = self.library.key(plan.tokens[begin:end], tenant=plan.request.tenant)
                self.library.measure(key, filled.measure)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def capture(
        self,
        key: str,
        tokens: list[int],
        slots: torch.Tensor,
        *,
        start: int,
        is_exact: bool,
        is_first: bool,
    ) -> None:
        """Copy a chunk's KV into the store.

        Args:
            key: the chunk's key.
            tokens: token ids of the prompt up to the chunk's end.
            slots: slots of the chunk's tokens.
            start: position of the chunk's first token.
            is_exact: the KV equals that of an ordinary prefill.
            is_first: no other chunk precedes it.
        """
        with self._forward_stream():
            kv = self.read(tokens, slots, start=start, is_exact=is_exact)
            self.library.add(key, kv.to(torch.device("cpu")), is_first=is_first)

    def write(self, layers: Sequence[Any], slots: torch.Tensor, *, start: int) -> None:
        """Write the positions from `start` on of a dense cache into slots."""
        stop = start + len(slots)
        for attention, dense in zip(self.model.layers, layers, strict=True):
            keys, values = (
                part[0, :, start:stop].transpose(0, 1).contiguous()
                for part in (dense.keys, dense.values)
            )
            self._pool.set_kv_buffer(attention, slots, keys, values)

    def read(
        self, tokens: list[int], slots: torch.Tensor, *, start: int, is_exact: bool
    ) -> ChunkKV:
        """Return the KV of the tokens from `start` on of a prompt, which stand in slots."""
        layers = tuple(
            (
                self._pool.get_key_buffer(number)[slots].transpose(0, 1)[None],
                self._pool.get_value_buffer(number)[slots].transpose(0, 1)[None],
            )
            for number in range(self.model.num_layers)
        )
        return ChunkKV(
            tuple(tokens[start:]),
            base=start,
            layers=tuple((keys.contiguous(), values.contiguous()) for keys, values in layers),
            regime=self.library.regime,
            length=len(tokens),
            exact_after=tokens_digest(tokens[:start]) if is_exact else None,
        )

    def close(self) -> None:
        """Write what is only in memory to disk, if there is a disk tier."""
        self.library.store.close()

    @contextmanager
    def _forward_stream(self) -> Iterator[None]:
        """Run behind the forward passes that SGLang has launched, and before later ones."""
        if self.model.device.type != "cuda":
            yield
            return
        forward, current = self._runner.forward_stream, torch.cuda.current_stream()
        forward.wait_stream(current)
        with torch.cuda.stream(forward):
            yield
        current.wait_stream(forward)
