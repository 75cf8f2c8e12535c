"""Submit requests to an engine without HTTP."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from ragboost.chunk_cache.core.request import EngineChunkRequest, ReuseOptions
from ragboost.config import EngineSettings
from ragboost.engine.loading import LoadedModel, make_engine
from ragboost.engine.runtime.engine import Engine
from ragboost.engine.runtime.request import EngineRequest, Output, PromptTokens, SamplingParams
from tests.kv_integrity import check_blocks


class Parts(NamedTuple):
    """A prompt of system prompt, chunks and question, with tokens between the chunks."""

    system: tuple[int, ...]
    chunks: list[tuple[int, ...]]
    question: tuple[int, ...]
    gaps: list[tuple[int, ...]] = []  # noqa: RUF012  # behind the chunks

    @property
    def token_ids(self) -> list[int]:
        tokens = list(self.system)
        for number, chunk in enumerate(self.chunks):
            tokens += chunk
            tokens += self.gaps[number] if number < len(self.gaps) else ()
        return [*tokens, *self.question]

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        spans, start = [], len(self.system)
        for number, chunk in enumerate(self.chunks):
            spans.append((start, start + len(chunk)))
            start += len(chunk) + (len(self.gaps[number]) if number < len(self.gaps) else 0)
        return tuple(spans)

    def reusing(self, reuse: ReuseOptions, *, exact_chunks: int = 0) -> PromptTokens:
        options = EngineChunkRequest(self.spans, *reuse, exact_chunks=exact_chunks)
        return PromptTokens(self.token_ids, options)


@contextmanager
def running(loaded: LoadedModel, settings: EngineSettings) -> Iterator[Engine]:
    """Run an engine; check on exit that it has no work left."""
    engine = make_engine(loaded, settings)
    engine.start()
    yield engine
    engine.stop()
    check_blocks(engine.store.cache)
    assert not engine.scheduler.has_work


class Request:
    """A submitted request and its outputs; `reuse` permits reuse of the prompt's chunks."""

    def __init__(
        self,
        engine: Engine,
        prompt: list[int] | Parts,
        *,
        reuse: ReuseOptions | None = None,
        max_tokens: int = 4,
        salt: str | None = None,
        exact_chunks: int = 0,
    ) -> None:
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        if isinstance(prompt, list):
            tokens = PromptTokens(prompt)
        elif reuse is None:
            tokens = PromptTokens(prompt.token_ids)
        else:
            tokens = prompt.reusing(reuse, exact_chunks=exact_chunks)
        self.submitted = EngineRequest(
            tokens,
            SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
            emit=self.outputs.put,
            salt=salt,
        )
        self.is_accepted = engine.submit(self.submitted)

    def next(self) -> Output:
        return self.outputs.get()

    def finish(self) -> list[Output]:
        outputs = [self.next()]
        while outputs[-1].finish_reason is None:
            outputs.append(self.next())
        return outputs

    def tokens(self) -> list[int | None]:
        return [output.token_id for output in self.finish()]

    def sources(self) -> tuple[int, int, int, int]:
        """Return prompt tokens by source: exact, reused, recomputed, computed."""
        origins = self.finish()[-1].origins
        assert origins is not None
        assert sum(origins) == self.submitted.num_prompt_tokens
        return origins


def watch_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list that gets the rows of each forward of a step, for the steps that have some."""
    steps: list[list[int]] = [[]]
    forward, step = engine.runner.forward, engine.scheduler.step

    def note_rows(token_ids: Sequence[int], *args: Any, **options: Any) -> torch.Tensor:
        steps[-1].append(len(token_ids))
        return forward(token_ids, *args, **options)

    def note_step() -> list[EngineRequest]:
        if steps[-1]:
            steps.append([])
        return step()

    monkeypatch.setattr(engine.runner, "forward", note_rows)
    monkeypatch.setattr(engine.scheduler, "step", note_step)
    return steps
