"""Chunk reuse inside a real, unmodified SGLang."""

import json
import subprocess
from typing import Any

import pytest

from tests.engines.conftest import require
from tests.engines.servers import bind_ranks, environment, python

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]
ROUNDING = 1e-3


def run_checks(module: str, **variables: str) -> Any:
    """Return what a file of checks prints in SGLang's environment."""
    require("sglang")
    done = subprocess.run(
        [*python("sglang"), "-W", "ignore", "-m", f"tests.engines.{module}"],
        env=environment("sglang", **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told() -> Any:
    return run_checks("chunks_sglang")


@pytest.fixture(scope="module")
def ranks() -> Any:
    """The checks with two ranks, each of which holds half of the heads."""
    return run_checks("chunks_sglang_ranks", **bind_ranks(2))


def test_the_chunks_of_finished_requests_are_reused_at_other_positions(told: Any) -> None:
    reuse = told["check_reuse"]
    assert told["first"]["reason"] == "nothing_stored"
    # Two pages of the system prompt's 40 tokens are an exact hit; its other 8 are computed.
    assert reuse["stale"] == {"exact": 32, "reused": 600, "recomputed": 0, "computed": 31}
    assert reuse["part"] == {"exact": 32, "reused": 510, "recomputed": 90, "computed": 31}
    assert reuse["adds_up"]


def test_recomputing_everything_equals_an_ordinary_prefill(told: Any) -> None:
    assert told["check_reuse"]["full_error"] < ROUNDING


def test_an_equal_request_is_filled_again(told: Any) -> None:
    assert told["check_reuse"]["is_again_equal"]


def test_exact_requests_never_meet_approximate_kv(told: Any) -> None:
    assert told["check_reuse"]["poison"] < ROUNDING
    assert told["check_reuse"]["poison_after_output"] < ROUNDING


def test_bought_chunks_are_a_prefix_for_everybody(told: Any) -> None:
    bought = told["check_bought"]
    # 40 tokens of the system prompt, two chunks of 120 and the question are computed.
    assert bought["bought"] == {"exact": 0, "reused": 306, "recomputed": 54, "computed": 303}
    # Of the 280 tokens up to the second chunk's end, 17 pages of 16 are found.
    assert bought["found"] == {"exact": 272, "reused": 306, "recomputed": 54, "computed": 31}
    assert bought["plain_cached"] == 272
    assert bought["adds_up"]


def test_exact_requests_meet_no_approximate_kv_behind_bought_chunks(told: Any) -> None:
    assert told["check_bought"]["poison"] < ROUNDING
    assert told["check_bought"]["are_shared_right"]


def test_requests_of_one_step_do_not_mix(told: Any) -> None:
    assert told["check_batch"] == {"is_batch_right": True}


def test_input_that_makes_no_sense_is_computed_exactly_with_a_reason(told: Any) -> None:
    assert told["check_bad_input"] == {
        "overlapping": ["bad_chunks", True],
        "outside": ["bad_chunks", True],
        "unknown policy": ["bad_options", True],
        "shifted": ["nothing_stored", True],
        "off": ["reuse_off", True],
        "another tenant": ["nothing_stored", True],
        "no JSON": 2,
    }


def test_a_prompt_may_end_in_a_chunk(told: Any) -> None:
    assert told["check_ends"]["ending_error"] < ROUNDING


def test_log_probabilities_of_the_prompt_are_computed(told: Any) -> None:
    assert told["check_ends"]["num_prompt_logprobs"] == 400
    assert told["check_ends"]["num_cached"] == 0


def test_requests_that_wait_for_room_get_the_same_text_and_poison_nothing(told: Any) -> None:
    assert told["check_pressure"]["is_text_right"]
    assert told["check_pressure"]["poison"] < ROUNDING


def test_a_request_that_leaves_gives_its_slots_back(told: Any) -> None:
    assert told["check_abort"]["error"] < ROUNDING


def test_a_long_filling_is_spread_over_steps_in_which_others_decode(told: Any) -> None:
    pacing = told["check_pacing"]
    assert pacing["num_tokens_between"] >= 4
    assert pacing["full_error"] < ROUNDING
    assert pacing["poison"] < ROUNDING


def test_two_ranks_with_half_of_the_heads_each_choose_the_tokens_of_one(ranks: Any) -> None:
    assert max(ranks["check_policies"].values()) < ROUNDING
    assert ranks["check_measuring"] == "several_workers"


def test_two_ranks_reuse_chunks_and_poison_nothing(ranks: Any) -> None:
    reuse = ranks["check_reuse"]
    # The chunks were computed alone: the first one is exact behind the system prompt.
    assert reuse["stale"] == {"exact": 152, "reused": 480, "recomputed": 0, "computed": 31}
    assert reuse["is_again_equal"]
    assert reuse["adds_up"]
    assert max(reuse[name] for name in ("full_error", "poison", "poison_after_output")) < ROUNDING
    assert ranks["check_batch"] == {"is_batch_right": True}
    assert ranks["check_ends"]["ending_error"] < ROUNDING


def test_two_ranks_keep_in_step_under_pressure_aborts_and_pacing(ranks: Any) -> None:
    assert ranks["check_pressure"]["is_text_right"]
    assert ranks["check_pressure"]["poison"] < ROUNDING
    assert ranks["check_abort"]["error"] < ROUNDING
    assert ranks["check_pacing"]["full_error"] < ROUNDING
    assert ranks["check_pacing"]["poison"] < ROUNDING


def test_two_ranks_go_on_reusing_while_their_stores_evict(ranks: Any) -> None:
    assert ranks["check_evictions"]["error"] < ROUNDING
    assert ranks["check_evictions"]["num_reused"] > 0


def test_each_of_two_ranks_keeps_its_own_heads_on_the_disk_of_both(ranks: Any) -> None:
    assert ranks["num_different"] == 6  # of three documents
