"""The oracle of cache misses, on a few sessions of the coding agent."""

import random
from pathlib import Path

import pytest

from benchmarks.agents.cache_breaks import MUTATIONS, coding_sessions, recovered, score

SESSIONS = coding_sessions(Path(__file__).parents[2] / "ragboost" / "hosted", 4)


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_has_its_cause_and_place(kind: str) -> None:
    row = score("coding agent", SESSIONS, kind, random.Random(kind))
    assert row["tried"] >= 1
    assert row["causes"] == row["tried"]
    assert row["positions"] == row["breaks"]
    assert row["false"] == 0


def test_the_safe_mends_recover_what_shuffled_tools_lose() -> None:
    figures = recovered(SESSIONS, 1)
    assert figures["recovered by engine"] == 1.0
    assert figures["recovered by hosted"] >= 0.8
