"""Ask a real language model a few questions, plain and boosted: some that a model of 135 million
parameters answers in the retriever's order."""

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ragboost.config import EngineSettings
from ragboost.config.model_directory import find_model
from ragboost.evaluation.demo.run import ask_both
from ragboost.evaluation.demo.workload import Workload, WorkloadTurn
from ragboost.types import Document

ANSWERING = Path("smollm2-135m")
_MAX_TOKENS = 16
_TEXTS = {
    "lease": "Maria Lopez signed the lease in May.",
    "rent": "The rent is 2,400 euros a month.",
    "heating": "The company Thermo Nord repaired the heating in October.",
    "bins": "The bins are emptied every Tuesday morning.",
    "parking": "The parking space of the flat is number 14.",
}
_DOCUMENTS = {name: Document(text, id=name) for name, text in _TEXTS.items()}
# Each with its documents, most relevant first.
_QUESTIONS = (
    ("Who signed the lease?", ("lease", "rent")),
    ("How much is the rent?", ("rent", "lease", "heating", "parking")),
    ("Which company repaired the heating?", ("heating", "rent", "lease", "bins")),
    ("When are the bins emptied?", ("bins", "heating", "rent", "lease")),
    ("What is the number of the parking space?", ("parking", "lease", "rent", "heating")),
)


class Answers(NamedTuple):
    question: str
    plain: str
    boosted: str
    plain_tokens: int
    boosted_tokens: int


def ask_model(engine: EngineSettings, *, console: Console) -> list[Answers]:
    """Ask the questions, each plain and boosted, with greedy decoding."""
    if engine.model is not None:
        find_model(engine.model)
    turns = [
        WorkloadTurn(f"Question: {question}", tuple(_DOCUMENTS[name] for name in names))
        for question, names in _QUESTIONS
    ]
    answers = ask_both(Workload(turns, []), engine, max_tokens=_MAX_TOKENS, console=console)
    pairs = zip(_QUESTIONS, answers[0].sessions, answers[1].sessions, strict=True)
    return [
        Answers(
            question,
            first.text.strip(),
            second.text.strip(),
            first.usage.prompt_tokens - (first.usage.cached_tokens or 0),
            second.usage.prompt_tokens - (second.usage.cached_tokens or 0),
        )
        for (question, _), first, second in pairs
    ]


def answer_table(title: str, rows: list[Answers]) -> Table:
    shown = Table(title=title, title_justify="left", show_footer=True)
    shown.add_column("question", footer="prefill tokens")
    shown.add_column("plain", footer=f"{sum(row.plain_tokens for row in rows):,}")
    shown.add_column("boosted", footer=f"{sum(row.boosted_tokens for row in rows):,}")
    for row in rows:
        shown.add_row(row.question, row.plain, row.boosted)
    return shown
