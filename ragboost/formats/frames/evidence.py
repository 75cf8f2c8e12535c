"""Placeholder until the evidence branch is merged."""

from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    start: int
    end: int


class Evidence:
    def cut(
        self,
        text: str,
        *,
        tenant: str,
        is_first_turn: bool,
        marks: Sequence[int] = (),
        learns: bool = True,
    ) -> tuple[Span, ...]:
        return ()
