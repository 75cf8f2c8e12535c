"""The tiers benchmark counts what its page says; its timed parts run to the end."""

from pathlib import Path

import pytest

from benchmarks.tier_models import Clockwork
from benchmarks.tier_storage import ASSUMED, FITTED, Setting, means, requests, storage
from benchmarks.tiers import queue


def test_storage_counts_add_up() -> None:
    counts = storage(ASSUMED, 0)
    stored, chains = counts["chunks_stored"], counts["prefix_cache_chunks"]
    assert counts["storage_saved"] == pytest.approx(1 - stored / chains)
    assert counts["prefix_cache_computes_common"] < chains <= counts["uses"]
    assert counts["computations_saved_at_15_percent"] < counts["computations_saved"] < 1
    kinds = [kind for chunks in requests(ASSUMED, 0) for kind, _ in chunks]
    assert kinds.count("unique") / len(kinds) == pytest.approx(0.1, abs=0.02)


def test_two_requests_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain cache keeps a, ab, abu, b, ba: five chunks; a chunk store a, b, u and the known c."""
    a, b, c, u = ("known", 0), ("shared", 0), ("known", 1), ("unique", 9)
    drawn = [[a, b, u], [a, b], [b, a]]
    monkeypatch.setattr("benchmarks.tier_storage.requests", lambda *_: drawn)
    counts = storage(Setting(known=len({a, c})), 0, ratio=0.5)
    assert (counts["uses"], counts["prefix_cache_chunks"], counts["chunks_stored"]) == (7, 5, 4)
    assert counts["prefix_cache_computes_common"] == 4  # all but u
    assert counts["common_computations_saved"] == pytest.approx(3 / 4)  # b was uploaded once
    assert counts["hit_rate"] == pytest.approx(5 / 7)
    # Computed: b and u; of seven uses two are exact prefixes, three are reused behind others.
    assert counts["computations_saved_at_15_percent"] == pytest.approx(1 - (2 + 0.5 * 3) / 5)


def test_the_fitted_setting_gives_the_papers_four_figures() -> None:
    found = means(FITTED)
    assert found["storage_saved"] == pytest.approx(0.710, abs=0.02)
    assert found["hit_rate"] == pytest.approx(0.779, abs=0.02)
    assert found["prefix_cache_computes_common"] == pytest.approx(4036, rel=0.03)
    assert found["common_computations_saved"] == pytest.approx(0.823, abs=0.02)


def test_timed_parts_have_a_row_for_every_arm(tmp_path: Path) -> None:
    bench = Clockwork(tmp_path, num_requests=2, prefill_s=0.004)
    assert len(queue(bench, 1)) == 9
