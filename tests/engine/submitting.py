"""Submit requests to an engine without HTTP."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from ragboost.chunk_cache.core.options import ReuseOptions
from ragboost.config import EngineSettings
from ragboost.engine.loading import LoadedModel, make_engine
from ragboost.engine.runtime.engine import Engine
from ragboost.engine.runtime.prompt import CutPrompt, PromptTokens
from ragboost.engine.runtime.request import EngineRequest, Output
from ragboost.engine.runtime.sampling import SamplingParams


@contextmanager
def running(loaded: LoadedModel, settings: EngineSettings) -> Iterator[Engine]:
    """Run an engine; check on exit that it has no work left."""
    engine = make_engine(loaded, settings)
    engine.start()
    yield engine
    engine.stop()
    engine.store.cache.check_integrity()
    assert not engine.scheduler.has_work


class Request:
    """A submitted request and its outputs; `reuse` permits reuse of the prompt's chunks."""

    def __init__(
        self,
        engine: Engine,
        prompt: list[int] | CutPrompt,
        *,
        reuse: ReuseOptions | None = None,
        max_tokens: int = 4,
        salt: str | None = None,
        keep_tokens: int | None = None,
    ) -> None:
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        tokens = (
            PromptTokens(prompt) if isinstance(prompt, list) else PromptTokens(prompt.token_ids)
        )
        if reuse is not None and isinstance(prompt, CutPrompt):
            tokens = PromptTokens(tokens.token_ids, prompt, reuse, keep_tokens=keep_tokens)
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
        """Return prompt tokens by source: exact, approximate, recomputed, computed."""
        last = self.finish()[-1]
        assert last.reused is not None
        rest = self.submitted.num_prompt_tokens - last.cached_tokens - sum(last.reused)
        return last.cached_tokens, *last.reused, rest
