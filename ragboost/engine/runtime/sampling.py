"""Sample the next token from logits: greedy, or nucleus sampling with a seed per request."""

from dataclasses import dataclass

import torch
from torch import Tensor

_GREEDY = 1e-5  # below this temperature, as in vLLM: divided by less, logits overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # probability mass of the tokens to sample from
    seed: int | None = None  # None: random
    ignore_eos: bool = False  # continue after an end-of-sequence token (for benchmarks)

    def generator(self) -> torch.Generator | None:
        if self.temperature < _GREEDY:
            return None
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed & 0x7FFF_FFFF_FFFF_FFFF)
        return generator


def sample(logits: Tensor, params: SamplingParams, generator: torch.Generator | None) -> int:
    if generator is None:
        return int(logits.argmax())
    probs = (logits.cpu() / params.temperature).softmax(-1)
    if params.top_p < 1:
        ordered, ids = probs.sort(descending=True)
        # Keep every token before which less than top_p has been gathered: at least the first.
        is_beyond = ordered.cumsum(-1) - ordered >= params.top_p
        ordered[1:][is_beyond[1:]] = 0.0
        return int(ids[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(probs, 1, generator=generator))
