"""Sequences submitted to an engine without HTTP, for the tests of this folder."""

import queue

from ragboost.engine.core import Engine
from ragboost.engine.extension import Approx
from ragboost.engine.parts import Parts
from ragboost.engine.sampling import SamplingParams
from ragboost.engine.sequence import Output, Sequence


class Request:
    """A submitted sequence and what it has emitted. With `approx`, the chunks of its parts may be
    reused."""

    def __init__(
        self,
        engine: Engine,
        prompt: list[int] | Parts,
        *,
        approx: Approx | None = None,
        max_tokens: int = 4,
        salt: str | None = None,
    ) -> None:
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        parts = prompt if isinstance(prompt, Parts) else None
        self.sequence = Sequence(
            prompt.token_ids if isinstance(prompt, Parts) else prompt,
            SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
            emit=self.outputs.put,
            parts=parts if approx else None,
            approx=approx,
            salt=salt,
        )
        self.is_accepted = engine.submit(self.sequence)

    def next(self) -> Output:
        return self.outputs.get(timeout=20)

    def finish(self) -> list[Output]:
        outputs = [self.next()]
        while outputs[-1].finish_reason is None:
            outputs.append(self.next())
        return outputs

    def tokens(self) -> list[int | None]:
        return [output.token_id for output in self.finish()]

    def sources(self) -> tuple[int, int, int, int]:
        """Exact, approximate, recomputed, computed."""
        last = self.finish()[-1]
        assert last.reused is not None
        rest = self.sequence.num_prompt_tokens - last.cached_tokens - sum(last.reused)
        return last.cached_tokens, *last.reused, rest
