"""Draw a few prompts of the demo before and after, with what a prefix cache finds of each."""

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from rich.table import Table
from rich.text import Text

from ragboost.booster.booster import Booster
from ragboost.evaluation.demo.workload import WorkloadTurn

_NUM_PROMPTS = 4
_CACHED, _COMPUTED = "bold black on green", "dim"


def picture(turns: Sequence[WorkloadTurn]) -> Table:
    """Return the prompts of questions with many documents in common, in brackets what is cached."""
    chosen, booster = _alike(turns), Booster()
    before = [_names(turn) for turn in chosen]
    contexts = [booster.boost(turn.question, turn.documents) for turn in chosen]
    after = [tuple(str(document.id) for document in context.documents) for context in contexts]
    letters = {name: ascii_uppercase[at] for at, name in enumerate(dict.fromkeys(sum(before, ())))}
    title = "Four prompts: letters are documents, [ ] was cached"
    shown = Table(title=title, title_justify="left")
    shown.add_column("before")
    shown.add_column("after")
    for row in zip(_rows(before, letters), _rows(after, letters), strict=True):
        shown.add_row(*row)
    return shown


def _alike(turns: Sequence[WorkloadTurn]) -> list[WorkloadTurn]:
    """Choose the prompts that have most in common with one of them, in different orders."""

    def shared(one: WorkloadTurn, other: WorkloadTurn) -> int:
        return len(set(_names(one)) & set(_names(other)))

    different = list({_names(turn): turn for turn in turns}.values())
    middle = max(different, key=lambda turn: sum(shared(turn, other) ** 2 for other in different))
    return sorted(different, key=lambda turn: -shared(turn, middle))[:_NUM_PROMPTS]


def _names(turn: WorkloadTurn) -> tuple[str, ...]:
    return tuple(str(document.id) for document in turn.documents)


def _rows(prompts: Sequence[tuple[str, ...]], letters: dict[str, str]) -> Iterator[Text]:
    seen: set[tuple[str, ...]] = set()
    for prompt in prompts:
        row = Text()
        for end, name in enumerate(prompt, 1):
            is_cached = prompt[:end] in seen
            cell = f"[{letters[name]}]" if is_cached else f" {letters[name]} "
            row.append(cell, _CACHED if is_cached else _COMPUTED)
        seen.update(prompt[:end] for end in range(1, len(prompt) + 1))
        yield row
