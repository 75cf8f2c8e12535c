"""Chunk reuse inside a real, unmodified vLLM."""

import json
import subprocess
from typing import Any

import pytest

from tests.engines.conftest import require
from tests.engines.servers import environment, python

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]
ROUNDING = 1e-3


def run_checks(module: str) -> Any:
    """Return what a file of checks prints in vLLM's environment."""
    require("vllm")
    done = subprocess.run(
        [*python("vllm"), "-W", "ignore", "-m", f"tests.engines.{module}"],
        env=environment("vllm"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told() -> Any:
    return run_checks("chunks_vllm")


@pytest.fixture(scope="module")
def ranks() -> Any:
    """The checks with two workers, each of which holds half of the heads."""
    return run_checks("chunks_vllm_ranks")


def test_the_chunks_of_finished_requests_are_reused_at_other_positions(told: Any) -> None:
    reuse = told["check_reuse"]
    assert told["first"]["reason"] == "nothing_stored"
    # The system prompt's first block of 32 tokens is an exact hit; its other 8 are computed.
    assert reuse["stale"] == {"exact": 32, "reused": 600, "recomputed": 0, "computed": 31}
    assert reuse["part"] == {"exact": 32, "reused": 510, "recomputed": 90, "computed": 31}
    assert reuse["adds_up"]


def test_recomputing_everything_equals_an_ordinary_prefill(told: Any) -> None:
    assert told["check_reuse"]["full_error"] < ROUNDING


def test_an_equal_request_finds_its_own_approximate_blocks(told: Any) -> None:
    assert told["check_reuse"]["again"] == {
        "exact": 32,
        "reused": 608,
        "recomputed": 0,
        "computed": 23,
    }


def test_exact_requests_never_meet_approximate_blocks(told: Any) -> None:
    assert told["check_reuse"]["poison"] < ROUNDING
    assert told["check_reuse"]["poison_after_output"] < ROUNDING


def test_bought_chunks_are_a_prefix_for_everybody(told: Any) -> None:
    bought = told["check_bought"]
    # 40 tokens of the system prompt, two chunks of 120 and the question are computed.
    assert bought["bought"] == {"exact": 0, "reused": 306, "recomputed": 54, "computed": 303}
    # Of the 280 tokens up to the second chunk's end, eight blocks of 32 are found.
    assert bought["found"] == {"exact": 256, "reused": 306, "recomputed": 54, "computed": 47}
    assert bought["plain_cached"] == 256
    assert bought["adds_up"]


def test_of_bought_chunks_those_are_copied_that_stand_where_they_were_computed(told: Any) -> None:
    whole = {"exact": 120, "reused": 0, "recomputed": 0, "computed": 543}
    assert told["check_bought"]["whole"] == whole


def test_exact_requests_meet_no_approximate_block_behind_bought_ones(told: Any) -> None:
    bought = told["check_bought"]
    assert bought["poison"] < ROUNDING
    assert bought["num_ended"] == 3
    assert bought["shared_error"] < ROUNDING


def test_requests_of_one_step_do_not_mix(told: Any) -> None:
    assert told["check_batch"] == {"is_batch_right": True, "are_choices_right": True}


def test_input_that_makes_no_sense_is_computed_exactly_with_a_reason(told: Any) -> None:
    assert told["check_bad_input"] == {
        "overlapping": ["bad_chunks", True],
        "outside": ["bad_chunks", True],
        "unknown policy": ["bad_options", True],
        "shifted": ["nothing_stored", True],
        "off": ["reuse_off", True],
        "another tenant": ["nothing_stored", True],
        "no number": ["bad_options", True],
        "prompt logprobs": ["prompt_logprobs", True],
    }


def test_policies_that_need_measurements_reuse_measured_chunks_only(told: Any) -> None:
    assert told["check_measuring"]["before"]["reason"] == "not_measured"
    assert told["check_measuring"]["before"]["reused"] == 0
    assert told["check_measuring"]["after"]["recomputed"] > 0


def test_kv_computed_behind_neighbours_is_kept_and_reused_as_offline(told: Any) -> None:
    prepared = told["check_prepared"]
    assert prepared["error"] < ROUNDING
    assert prepared["are_behind"]
    assert prepared["overlap"] == pytest.approx(1.0)  # beta' (Cache-Craft eq. 8)


def test_a_prompt_may_end_in_a_chunk(told: Any) -> None:
    assert told["check_ends"]["ending_error"] < ROUNDING


def test_nothing_is_left_of_aborted_requests(told: Any) -> None:
    assert told["check_ends"]["num_left"] == 0


def test_a_prompt_that_cannot_be_filled_is_computed(told: Any) -> None:
    assert told["check_failure"]["num_failed"] == 2
    assert told["check_failure"]["failed_error"] < ROUNDING
    assert told["check_failure"]["failed_reason"] == "fill_failed"


def test_nothing_is_stored_of_a_step_whose_filling_failed(told: Any) -> None:
    assert not told["check_failure"]["is_captured"]


def test_a_long_filling_is_spread_over_steps_in_which_others_decode(told: Any) -> None:
    pacing = told["check_pacing"]
    assert pacing["paced_difference"] < ROUNDING
    assert pacing["paced_poison"] < ROUNDING
    assert pacing["num_tokens_between"] >= 4
    assert pacing["num_waiting"] == 1  # before it was aborted
    assert pacing["num_left"] == 0
    assert pacing["usage_left"] == 0
    assert pacing["num_failed"] == 1
    assert pacing["failed_error"] < ROUNDING


def test_preempted_requests_get_the_same_text_and_poison_nothing(told: Any) -> None:
    assert told["check_preemption"]["is_preempted_right"]
    assert told["check_preemption"]["preempted_poison"] < ROUNDING


def test_a_request_does_not_read_blocks_that_its_step_computes(told: Any, ranks: Any) -> None:
    for each in (told["check_shared_step"], ranks["check_shared_step"]):
        assert each["shared_error"] < ROUNDING
        assert each["plain_error"] < ROUNDING


def test_new_weights_reuse_nothing_of_the_old_ones(told: Any) -> None:
    assert told["check_new_weights"] == {"reused": [True, False, True], "reason": "nothing_stored"}


def test_resetting_the_caches_leaves_no_chunk_behind(told: Any, ranks: Any) -> None:
    for each in (told["check_reset"], ranks["check_reset"]):
        assert each["changed"] == each["restored"] == [True, False, True]


def test_a_hook_that_fails_switches_reuse_off_and_nothing_else(told: Any) -> None:
    broken = told["check_broken_hook"]
    assert broken["off_reason"].startswith("engine_internals: AttributeError")
    assert broken["reason"] == "engine_internals"
    assert max(broken["errors"]) < ROUNDING


def test_two_workers_reuse_chunks_as_one_does(told: Any, ranks: Any) -> None:
    one, two = told["check_reuse"], ranks["check_reuse"]
    assert [two[name] for name in ("stale", "part", "again")] == [
        one[name] for name in ("stale", "part", "again")
    ]
    assert two["adds_up"]
    assert two["full_error"] < ROUNDING
    assert ranks["check_batch"] == {"is_batch_right": True, "are_choices_right": True}


def test_two_workers_with_half_of_the_heads_each_choose_the_tokens_of_one(ranks: Any) -> None:
    assert max(ranks["check_policies"].values()) < ROUNDING


def test_no_request_of_two_workers_meets_approximate_blocks(ranks: Any) -> None:
    assert ranks["check_reuse"]["poison"] < ROUNDING
    assert ranks["check_reuse"]["poison_after_output"] < ROUNDING
    assert ranks["check_preemption"]["is_preempted_right"]
    assert ranks["check_preemption"]["preempted_poison"] < ROUNDING
    assert ranks["check_ends"]["ending_error"] < ROUNDING
    assert ranks["check_ends"]["num_left"] == 0


def test_the_stores_of_two_workers_stay_equal_and_bounded(ranks: Any) -> None:
    assert ranks["check_stores"] == {"is_equal": True, "num_stored": 4}


def test_what_one_worker_has_lost_is_computed_by_both(ranks: Any) -> None:
    assert ranks["check_lost"]["reasons"] == ["fill_failed", None, None, None]
    assert ranks["check_lost"]["error"] < ROUNDING


def test_two_workers_fill_a_long_prompt_over_several_steps(ranks: Any) -> None:
    pacing = ranks["check_pacing"]
    assert pacing["difference"] < ROUNDING
    assert (pacing["num_waiting"], pacing["num_left"], pacing["usage_left"]) == (1, 0, 0)


def test_two_workers_measure_nothing_and_say_so(ranks: Any) -> None:
    assert ranks["check_measuring"] == {"reason": "several_workers", "reused": 0}


def test_two_workers_forget_the_chunks_of_old_weights(ranks: Any) -> None:
    told = ranks["check_new_weights"]
    assert told == {"reused": [True, False, False], "reason": "fill_failed"}


def test_an_internal_that_moved_switches_reuse_off_and_nothing_else() -> None:
    told = run_checks("chunks_vllm_moved")
    assert told["reason"] == "engine_internals"
    assert told["refusal"].startswith("engine_internals: ImportError: ")
    assert told["error"] < ROUNDING
    assert told["num_warnings"] == 1


def test_a_disk_that_hangs_or_is_slow_stops_no_step_of_the_scheduler() -> None:
    told = run_checks("chunks_vllm_places")
    assert [told[name]["longest_gap_steps"] for name in ("memory", "hung", "slow")] == [1, 1, 1]
    for name in ("hung", "slow"):
        assert told[name]["steps_during_reads"] > 0, "steps return while a read is under way"
        assert told[name]["told"]["reused"] in (0, 360), "0: later than it waits"
    assert told["threads"] == ["ragboost-load-disk"]
    aborted = told["aborted"]
    assert (aborted["was_tracked"], aborted["left"], aborted["is_idle"]) == (1, [0, 0, 0], True)


def test_a_request_of_two_workers_waits_for_its_chunks_on_disk() -> None:
    told = run_checks("chunks_vllm_ranks_disk")
    assert told["told"]["reused"] == 240
    assert told["loaded_difference"] == 0
