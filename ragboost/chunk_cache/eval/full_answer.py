"""Compare prefills of a prompt with full attention by making them follow its answer: one pass says
how far they are from it everywhere, and whether they would have given it."""

import math
from collections.abc import Collection, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.request_cache import RequestCache


class Estimate(NamedTuple):
    mean: float
    error: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean and its standard error; not a number where there are too few values."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(fmean(values) if values else math.nan, error)


def kl_divergence(logits: torch.Tensor, full: torch.Tensor) -> float:
    """Return KL(full || logits) of the next token in nats."""
    want, got = full.float().log_softmax(-1), logits.float().log_softmax(-1)
    return float((want.exp() * (want - got)).sum().clamp_min(0.0))


class Agreement(NamedTuple):
    kl: float  # divergence of the first token, in nats
    kl_answer: float  # mean over the tokens of the answer and its end
    same_first: bool
    same_answer: bool
    num_equal: int  # leading tokens of the answer that would be generated, too
    logits: torch.Tensor  # before each of its tokens and its end, (tokens, vocabulary)


class FullAnswer:
    """Full attention's greedy answer to a prompt of `position` tokens; takes the cache."""

    def __init__(
        self,
        adapter: ModelAdapter,
        cache: RequestCache,
        logits: torch.Tensor,
        *,
        position: int,
        max_tokens: int,
        stop_ids: Collection[int | None],
    ) -> None:
        self._adapter, self._position = adapter, position
        self._max, self._stop_ids = max_tokens, stop_ids
        self.tokens: Sequence[int] = adapter.decode(
            cache.clone(), logits, position=position, max_tokens=max_tokens, stop_ids=stop_ids
        )
        self._logits = self._follow(cache, logits)

    def compare(self, cache: RequestCache, logits: torch.Tensor) -> Agreement:
        """Return the agreement of another prefill, whose cache the answer is appended to."""
        found = self._follow(cache, logits)
        kl = [kl_divergence(row, full) for row, full in zip(found, self._logits, strict=True)]
        chosen, num_equal = found.argmax(-1).tolist(), 0
        while num_equal < len(self.tokens) and chosen[num_equal] == self.tokens[num_equal]:
            num_equal += 1
        ends = len(self.tokens) == self._max or chosen[-1] in self._stop_ids
        return Agreement(
            kl[0],
            fmean(kl),
            same_first=chosen[0] == int(self._logits[0].argmax()),
            same_answer=ends and num_equal == len(self.tokens),
            num_equal=num_equal,
            logits=found,
        )

    def complete(self, cache: RequestCache, agreement: Agreement) -> list[int]:
        """Return the answer that the prefill of `compare` gives; appends to its cache."""
        equal = list(self.tokens[: agreement.num_equal])
        if agreement.same_answer:
            return equal
        if surplus := len(agreement.logits) - 1 - len(equal):
            cache.crop(-surplus)
        return equal + self._adapter.decode(
            cache,
            agreement.logits[len(equal)],
            position=self._position + len(equal),
            max_tokens=self._max - len(equal),
            stop_ids=self._stop_ids,
        )

    def _follow(self, cache: RequestCache, logits: torch.Tensor) -> torch.Tensor:
        tokens = list(self.tokens[: self._max - 1])
        if not tokens:
            return logits[None]
        device = self._adapter.device
        positions = torch.arange(len(tokens), device=device) + self._position
        ids = torch.tensor([tokens], device=device)
        with torch.no_grad():
            out = self._adapter.model(
                ids, position_ids=positions[None], past_key_values=cache, use_cache=True
            )
        return torch.cat([logits[None], out.logits[0]])
