"""Policies that look at the reused KV, the question and positions: no layer of the whole prompt is
computed for them. Of a long question not all rows are read, see `QUESTION_ROWS`."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy, rank
from ragboost.chunk_cache.selection.view import SelectionView


class Epic(SelectionPolicy):
    """EPIC's LegoLink: the first tokens of every chunk, where it has formed an attention sink. The
    budget is spread over the chunks."""

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        return _closeness_to_start(view)


class FusionRAG(SelectionPolicy):
    """Query-guided selection (section 3.2): the tokens that the question attends to in the last
    layer, over the reused KV as in the authors' code. The paper's text runs the question alone."""

    reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.question_attention())[-1, view.candidates]


class MeanLayers(SelectionPolicy):
    """Selection like `FusionRAG`, averaged over all layers."""

    reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.mean_question_attention())[view.candidates]


class Anchored(SelectionPolicy):
    """Half of the budget for the first tokens of every chunk, which were computed as the beginning
    of everything (EPIC), half for what the question attends to (FusionRAG): the higher rank."""

    reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        attention = (yield from view.mean_question_attention())[view.candidates]
        return torch.maximum(rank(attention), rank(_closeness_to_start(view)))


def _closeness_to_start(view: SelectionView) -> torch.Tensor:
    starts = torch.tensor([start for start, _ in view.assembly.chunks])
    starts = starts.to(view.candidates.device)
    chunk = torch.searchsorted(starts, view.candidates, right=True) - 1
    return -(view.candidates - starts[chunk]).float()
