"""An engine with chunk reuse in this process, asked by token ids, as checks and benchmarks see it.

Runs in the engines' environments.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from transformers import LlamaForCausalLM

from tests.engines.random_model import Prompts


class OfflineEngine(ABC):
    """A model inside an engine, and the same one in transformers; a context manager that stops it.

    Positions are of a prompt's chunks; without them a request reuses nothing. Options are the
    fields of a request's `ragboost` object.
    """

    reference: LlamaForCausalLM

    @property
    def vocabulary(self) -> int:
        return int(self.reference.config.vocab_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def run(
        self, tokens: list[int], positions: Any = None, *, max_tokens: int = 1, **options: Any
    ) -> Any:
        """Run one request and return the engine's output."""

    @abstractmethod
    def report(self, output: Any) -> dict[str, Any]:
        """Return the origins of a prompt's tokens, and the reason if no chunk was reused."""

    @abstractmethod
    def answer(self, output: Any) -> list[int]:
        """Return the generated tokens."""

    @abstractmethod
    def logprobs(self, tokens: list[int], positions: Any = None, **options: Any) -> torch.Tensor:
        """Return the log-probabilities of the next token, (vocabulary,)."""

    @abstractmethod
    def flush(self) -> None:
        """Empty the prefix cache."""

    @abstractmethod
    def clock(self) -> float:
        """Return the CPU seconds that the engine has used."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def exact(self, tokens: list[int]) -> torch.Tensor:
        """Return the log-probabilities that transformers computes for the next token."""
        logits = self.reference(torch.tensor([tokens])).logits[0, -1]
        return torch.log_softmax(logits.float(), -1)

    def seconds(self, tokens: list[int], positions: Any = None, **options: Any) -> float:
        """Return the seconds to the first token, with an empty prefix cache."""
        self.flush()
        return self.cached_seconds(tokens, positions, **options)

    def cached_seconds(self, tokens: list[int], positions: Any = None, **options: Any) -> float:
        """Return the seconds to the first token, with the prefix cache as it is."""
        begin = self.clock()
        self.run(tokens, positions, **options)
        return self.clock() - begin

    def learn(self, prompts: Prompts) -> None:
        """Let the store take every chunk out of a request that has it alone."""
        for number in range(len(prompts.chunks)):
            self.run(*prompts.prompt([number]))
