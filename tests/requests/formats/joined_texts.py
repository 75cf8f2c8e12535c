"""Random requests whose documents only blank lines separate."""

import random
from collections.abc import Sequence

Documents = Sequence[Sequence[str]]  # the paragraphs of each
PLAIN = "Answer from the following context:\n\n{context}\n\nQuestion: {question}"


def paragraph(rng: random.Random, name: object) -> str:
    words = (rng.choice(("lease", "rent", "pets", "law")) for _ in range(24))
    return f"Paragraph {name}: {' '.join(words)}."


def corpus(rng: random.Random, num: int = 12) -> Documents:
    return [[paragraph(rng, f"{i} {j}") for j in range(rng.randint(2, 4))] for i in range(num)]


class JoinedTexts:
    """Prompts with some of the documents, the popular ones more often, as a retriever gives them.

    Args:
        template: with `{context}` and `{question}`.
    """

    def __init__(self, rng: random.Random, documents: Documents, template: str) -> None:
        self._rng = rng
        self.documents = ["\n\n".join(paragraphs) for paragraphs in documents]
        self._template = template

    def draw(self, num: int = 5) -> tuple[str, list[str]]:
        """Return a prompt and its documents."""
        ranks = range(len(self.documents))
        popularity = [1 / (rank + 1) for rank in ranks]
        chosen: dict[int, None] = {}
        while len(chosen) < num:
            chosen[self._rng.choices(ranks, popularity)[0]] = None
        documents = [self.documents[rank] for rank in chosen]
        context = "\n\n".join(documents)
        question = f"{self._rng.random()}?"
        return self._template.format(context=context, question=question), documents
