"""FusionRAG's query-guided selection (section 3.2): the tokens that the question attends to, over
the reused KV as in the authors' code. The paper's text runs the question alone.
Of a long question not all rows are read, see `QUESTION_ROWS`."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class FusionRAG(SelectionPolicy):
    """Selection by the last layer's attention of the question over the reused KV."""

    reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.question_attention())[-1, view.candidates]


class MeanLayers(SelectionPolicy):
    """Selection like `FusionRAG`, averaged over all layers."""

    reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.mean_question_attention())[view.candidates]
