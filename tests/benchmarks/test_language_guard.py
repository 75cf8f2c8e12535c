"""A language model answers as it was recorded, and every deliberate break shows.

Takes two minutes of one core; skipped where the model cannot be had.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra engine")

import torch

from benchmarks.language import guard
from benchmarks.language.arms import ArmRunner
from ragboost.booster import compose
from ragboost.chunk_cache.model import assemble
from ragboost.chunk_cache.model.rope import KeyRotation
from ragboost.chunk_cache.selection import policy
from ragboost.config.model_directory import find_model
from ragboost.errors import ConfigError
from ragboost.hints import order_hint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def runner() -> ArmRunner:
    try:
        find_model(guard.MODEL)
    except ConfigError as error:
        pytest.skip(str(error))
    return guard.make_runner()


def _rotated_one_further(*, target: torch.Tensor, **options: Any) -> KeyRotation:
    return KeyRotation(target=target + 1, **options)


def _chosen_from_the_end(assembly: Any, scores: torch.Tensor, **options: Any) -> torch.Tensor:
    return _choose(assembly, -scores, **options)


def _swapped_labels(labels: Sequence[str], by_relevance: Sequence[int], **options: Any) -> Any:
    return order_hint(labels, list(by_relevance)[::-1], **options)


_choose = policy.choose
BREAKS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "rotation off by one": (assemble, "KeyRotation", _rotated_one_further),
    "selection reversed": (policy, "choose", _chosen_from_the_end),
    "labels of the hint swapped": (compose, "order_hint", _swapped_labels),
}


def test_answers_are_as_recorded(runner: ArmRunner) -> None:
    found = guard.watch(runner, guard.make_prompts())

    assert guard.differences(found, guard.read_recorded()) == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_deliberate_break_shows(
    name: str, runner: ArmRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, recorded = guard.make_prompts(), guard.read_recorded()
    monkeypatch.setattr(*BREAKS[name])

    def shows(at: int) -> bool:
        found = guard.watch(runner, prompts[at : at + 1])
        return guard.differences(found, recorded[at : at + 1]) != []

    assert any(map(shows, range(5, 15)))  # of both halves, up to the first that shows it


def test_the_recorded_values_are_those_of_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(guard.read_recorded()) == guard.NUM_PROMPTS == len(guard.make_prompts())
    monkeypatch.setattr(guard, "DEFAULT_RATIO", 0.5)
    with pytest.raises(ValueError, match=r"the default is .*0\.5"):
        guard.read_recorded()
