"""The scores of an answer: by comparing texts, and by a judge's verdict."""

import re
from collections.abc import Callable, Mapping, Sequence

from ragboost.evaluation.prompts import Messages
from ragboost.evaluation.questions import EvalQuestion
from ragboost.text_scores import contains, exact_match, word_f1

JUDGE = "judge"
METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "em": exact_match,
    "f1": word_f1,
    "contains": contains,
}


def judge_messages(question: EvalQuestion, answer: str) -> Messages:
    right = " or ".join(question.answers)
    return (
        (
            "system",
            "You compare an answer with the correct one. Reply with one word: yes if both say the "
            "same to the question, else no.",
        ),
        ("user", f"Question: {question.text}\nCorrect answer: {right}\nAnswer: {answer}"),
    )


def verdict(reply: str) -> float | None:
    """Return 1 for a judge's yes, 0 for no, None for anything else."""
    word = re.search(r"\b(yes|no)\b", reply.lower())
    return None if word is None else float(word.group() == "yes")
