"""The stages of `benchmarks.proxy.stages` name functions that exist."""

import pytest

from benchmarks.proxy.stages import STAGES, find


@pytest.mark.parametrize("place", [place for places in STAGES.values() for place in places])
def test_a_stage_names_a_function(place: str) -> None:
    owner, name = find(place)

    assert callable(getattr(owner, name))
