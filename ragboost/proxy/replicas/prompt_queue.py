"""Prompts that wait to be sent to other processes, or to be learnt from them."""

from collections import deque

from ragboost.proxy.replicas.messages import SentPrompt


class PromptQueue:
    """A queue bounded by prompts and by their documents; the oldest are dropped."""

    def __init__(self, *, max_prompts: int, max_documents: int) -> None:
        self._max_prompts = max_prompts
        self._max_documents = max_documents
        self._prompts: deque[SentPrompt] = deque()
        self._num_documents = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, prompt: SentPrompt) -> None:
        self._prompts.append(prompt)
        self._num_documents += len(prompt.layout.documents)
        while len(self) > self._max_prompts or self._num_documents > self._max_documents:
            self._pop()

    def take(self, *, max_prompts: int, max_documents: int) -> tuple[SentPrompt, ...]:
        """Remove the oldest prompts: one, whatever its size, and as many as the bounds allow."""
        taken: list[SentPrompt] = []
        rest = max_documents
        while self._prompts and len(taken) < max_prompts:
            rest -= len(self._prompts[0].layout.documents)
            if taken and rest < 0:
                break
            taken.append(self._pop())
        return tuple(taken)

    def _pop(self) -> SentPrompt:
        prompt = self._prompts.popleft()
        self._num_documents -= len(prompt.layout.documents)
        return prompt
