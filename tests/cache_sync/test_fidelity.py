"""The rolling agreement of predicted and reported cached tokens."""

import logging

import pytest

from ragboost.cache_sync.sync import FidelityTracker


def test_precision_and_recall_count_tokens_of_the_window_only() -> None:
    tracker = FidelityTracker(window=2)
    tracker.record(predicted=1000, reported=0, prompt_tokens=1000)
    tracker.record(predicted=80, reported=100, prompt_tokens=200)
    tracker.record(predicted=120, reported=100, prompt_tokens=200)
    figures = tracker.read()
    assert figures.num_requests == 2
    assert figures.precision == pytest.approx(180 / 200)
    assert figures.recall == pytest.approx(180 / 200)


def test_nothing_predicted_and_nothing_reported_is_perfect() -> None:
    tracker = FidelityTracker()
    assert tracker.record(predicted=0, reported=0, prompt_tokens=0) == 0.0
    assert (tracker.read().precision, tracker.read().recall) == (1.0, 1.0)


def test_errors_are_signed_and_relative_to_the_prompt() -> None:
    tracker = FidelityTracker()
    errors = [
        tracker.record(predicted=predicted, reported=reported, prompt_tokens=100)
        for predicted, reported in ((0, 100), (100, 100), (103, 100), (10_000, 0))
    ]
    assert errors == [-1.0, 0.0, 0.0, 1.0]  # a prediction never exceeds the prompt


def test_a_fall_is_warned_of_once_and_a_recovery_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = FidelityTracker(window=10, min_requests=5)
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            tracker.record(predicted=100, reported=0, prompt_tokens=100)
        assert not caplog.records
        for _ in range(10):
            tracker.record(predicted=100, reported=0, prompt_tokens=100)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert tracker.is_low
        for _ in range(10):
            tracker.record(predicted=100, reported=100, prompt_tokens=100)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert not tracker.is_low


def test_figures_about_the_limit_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tracker = FidelityTracker(window=10, min_requests=5)
    with caplog.at_level(logging.INFO):
        for reported in [89, 91] * 20:
            for _ in range(10):
                tracker.record(predicted=100, reported=reported, prompt_tokens=100)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
