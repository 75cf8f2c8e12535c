"""Train a model with the dependency mask it will be served with (DepCache section 3.3).

Knows laid-out prompts and their answers. Does not know texts, files or schedules; see
`scripts/finetune_dependency.py`. Untuned models lose accuracy with dependency attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from ragboost.errors import RequestError
from ragboost.graph.layout import DepPrompt, Positions, lay_out


@dataclass(frozen=True, slots=True)
class TuningExample:
    """A prompt whose linear parts may each end with an answer."""

    prompt: DepPrompt
    answers: Mapping[str, int]  # answer tokens at the end of each answering part, by name


class TuningBatch(NamedTuple):
    """A batch of e examples, padded at the end to t tokens."""

    input_ids: torch.Tensor  # (e, t)
    position_ids: torch.Tensor  # (e, t)
    mask: torch.Tensor  # added to the scores, (e, 1, t, t)
    labels: torch.Tensor  # token that each slot predicts, -100 for none, (e, t)


def collate(
    examples: Sequence[TuningExample],
    *,
    positions: Positions = "depth",
    dtype: torch.dtype = torch.float32,
) -> TuningBatch:
    """Return the examples as a batch.

    Raises:
        RequestError: an answer is empty, or takes up its whole part.
    """
    layouts = [lay_out(example.prompt, positions=positions) for example in examples]
    longest = max(map(len, layouts))
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    at, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    visible = torch.eye(longest, dtype=torch.bool).repeat(
        len(examples), 1, 1
    )  # padding sees itself
    for row, (example, layout) in enumerate(zip(examples, layouts, strict=True)):
        count = len(layout)
        ids[row, :count] = torch.tensor(layout.tokens)
        at[row, :count] = layout.positions
        visible[row, :count, :count] = layout.dense_mask()
        for name, length in example.answers.items():
            start, stop = layout.spans[name]
            if not 0 < length < stop - start:
                raise RequestError(
                    f"answers[{name!r}] must be from 1 to {stop - start - 1}, got {length}"
                )
            labels[row, stop - length - 1 : stop - 1] = ids[row, stop - length : stop]
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    return TuningBatch(ids, at, mask[:, None], labels)


def answer_loss(model: Any, batch: TuningBatch) -> torch.Tensor:
    """Return the mean cross entropy of the answer tokens."""
    keep = (batch.labels != -100).any(0).nonzero().flatten()
    logits = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=batch.mask,
        use_cache=False,
        logits_to_keep=keep,
    ).logits
    return F.cross_entropy(logits.float().flatten(0, 1), batch.labels[:, keep].flatten())
