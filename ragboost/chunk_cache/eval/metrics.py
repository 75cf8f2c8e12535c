"""Scores of answers and logits."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Estimate(NamedTuple):
    mean: float
    error: float


def estimate(values: Sequence[float]) -> Estimate:
    count = len(values)
    if count == 0:
        return Estimate(math.nan, math.nan)
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, math.nan)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count))


def kl_divergence(logits: torch.Tensor, full: torch.Tensor) -> float:
    """Return KL(full || logits) of the next token in nats."""
    want, got = full.float().log_softmax(-1), logits.float().log_softmax(-1)
    return float((want.exp() * (want - got)).sum().clamp_min(0.0))
