"""Scores of answers and logits."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch


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
