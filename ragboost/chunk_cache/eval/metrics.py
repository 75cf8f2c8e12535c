"""Scores of answers and of logits. Knows numbers and texts; does not know models or prompts."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Estimate(NamedTuple):
    """A mean with its standard error; the error is NaN for a single value."""

    mean: float
    error: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and standard error; NaN for no values."""
    count = len(values)
    if count == 0:
        return Estimate(math.nan, math.nan)
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, math.nan)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count))


def normalised(score: float, *, full: float, reuse: float) -> float:
    """Return which share of what full reuse loses is won back (FusionRAG eq. 11).

    0 is full reuse, 1 is full attention. NaN where full reuse loses nothing: there is no scale
    then.
    """
    return (score - reuse) / (full - reuse) if full > reuse else math.nan


def kl_divergence(logits: torch.Tensor, full: torch.Tensor) -> float:
    """Return KL(full || logits) of the next token, in nats."""
    want, got = full.float().log_softmax(-1), logits.float().log_softmax(-1)
    return float((want.exp() * (want - got)).sum().clamp_min(0.0))


def f1(answer: str, wanted: Sequence[str]) -> float:
    """Return the best word F1 against the wanted answers, 0 to 1, as SQuAD counts it: no case,
    articles or punctuation."""
    return max((_f1(_words(answer), _words(one)) for one in wanted), default=0.0)


def _f1(got: list[str], want: list[str]) -> float:
    if not got or not want:
        return float(got == want)
    same = sum((Counter(got) & Counter(want)).values())
    return 2 * same / (len(got) + len(want))


def _words(text: str) -> list[str]:
    bare = "".join(char for char in text.lower() if char not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()
