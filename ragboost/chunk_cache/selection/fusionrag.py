"""FusionRAG's query-guided selection (FusionRAG section 3.2): what the question attends to in the
last layer.

The text runs the question by itself; the authors' code runs it over the reused KV, which finds
more. Both are here, the second is what `fusionrag` means.
"""

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class LastLayerAttention(Policy):
    """The question reads the reused KV; one softmax over the prompt, top-k over all chunks."""

    def score(self, view: SelectionView) -> torch.Tensor:
        return view.question_attention()[-1, view.candidates]


class QuestionAlone(Policy):
    """The question reads the system prompt and itself; a softmax per chunk."""

    def score(self, view: SelectionView) -> torch.Tensor:
        return view.question_alone_attention()[-1, view.candidates]
