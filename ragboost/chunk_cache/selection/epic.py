"""EPIC's LegoLink: the first tokens of every chunk, where it has formed an attention sink."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class Epic(SelectionPolicy):
    """Selection by the distance to the chunk's start: the budget is spread over the chunks."""

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        return closeness_to_start(view)


def closeness_to_start(view: SelectionView) -> torch.Tensor:
    starts = torch.tensor([start for start, _ in view.assembly.chunks])
    starts = starts.to(view.candidates.device)
    chunk = torch.searchsorted(starts, view.candidates, right=True) - 1
    return -(view.candidates - starts[chunk]).float()
