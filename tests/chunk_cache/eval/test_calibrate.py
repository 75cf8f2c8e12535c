"""`ragboost calibrate` chooses by half of the prompts, within the cost, and resumes."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval import calibrate
from ragboost.chunk_cache.eval.arms import FULL, ArmOutcome, OutcomeFile
from ragboost.chunk_cache.eval.calibrate import DEFAULT, Calibrator, choose
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.selection.calibration import Calibration
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.cli import app
from ragboost.errors import ChunkCacheError
from tests.chunk_cache.families import build_adapter, build_model, make_prompt


def _case(seed: int) -> Case:
    system, chunks, question = make_prompt(seed=seed)
    return Case(tuple(system), tuple(map(tuple, chunks)), tuple(question))


def _outcome(policy: str, ratio: float, *, kl: float, cpu_s: float) -> ArmOutcome:
    return ArmOutcome(policy, ratio, kl, kl, True, True, 1.0, cpu_s)


class _Measured(Calibrator):
    """Outcomes by arm instead of a model's."""

    arms: dict[tuple[str, float], ArmOutcome]
    asked: list[tuple[str, float]]

    def measure(self, case: Case, arms: Any) -> None:
        self.asked += arms
        self._outcomes.add(self._id(case), [self.arms[arm] for arm in [FULL, *arms]])


@pytest.fixture
def measured() -> _Measured:
    calibrator = _Measured(
        ChunkReuse(build_adapter(), TieredStore()), OutcomeFile(None, ArmOutcome)
    )
    rows = [
        _outcome(*FULL, kl=0.0, cpu_s=10.0),
        _outcome(*DEFAULT, kl=0.5, cpu_s=3.0),
        _outcome("epic", 0.2, kl=0.3, cpu_s=2.0),
        _outcome("a3", 0.1, kl=0.4, cpu_s=1.0),
        _outcome("gradual", 0.3, kl=0.1, cpu_s=4.0),
    ]
    calibrator.arms = {(row.policy, row.ratio): row for row in rows}
    calibrator.asked = []
    return calibrator


def _silent(stage: str, done: int, total: int) -> None:
    pass


def test_the_nearest_arm_that_costs_no_more_than_the_default_is_chosen(measured: _Measured) -> None:
    cases = [_case(seed) for seed in range(5)]
    arms = [("epic", 0.2), ("a3", 0.1), ("gradual", 0.3)]

    rows = choose(measured, cases, arms, max_cost=None, on_progress=_silent)

    assert [(row.policy, row.cost) for row in rows] == [
        ("epic", 0.2),
        ("a3", 0.1),
        (DEFAULT[0], 0.3),
    ]
    assert measured.asked.count(("gradual", 0.3)) == 3, "dropped once its cost is known"
    assert measured.asked.count(("epic", 0.2)) == 5


def test_a_given_cost_decides_instead(measured: _Measured) -> None:
    cases = [_case(seed) for seed in range(4)]
    arms = [("epic", 0.2), ("a3", 0.1), ("gradual", 0.3)]

    (cheap,) = choose(measured, cases, arms, max_cost=0.1, on_progress=_silent)
    best, *_ = choose(measured, cases, arms, max_cost=0.5, on_progress=_silent)

    assert (cheap.policy, best.policy) == ("a3", "gradual")
    with pytest.raises(ChunkCacheError, match=r"every policy and ratio costs more than 0\.05"):
        choose(measured, cases, arms, max_cost=0.05, on_progress=_silent)


def test_the_command_writes_what_engines_read_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()  # every prefill costs the same: with a tiny model, selecting is most of it
    monkeypatch.setattr(calibrate, "_clock", lambda _: lambda: float(next(ticks)))
    build_model("qwen2-bias").save_pretrained(tmp_path / "model")
    lines = []
    for seed in range(6):
        system, chunks, question = make_prompt(seed=seed)
        lines.append(json.dumps({"system": system, "documents": chunks, "question": question}))
    (tmp_path / "cases.jsonl").write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "calibration.json"
    command = ["calibrate", "--model", str(tmp_path / "model"), "--out", str(out), "--json"]
    command += ["--data", str(tmp_path / "cases.jsonl"), "--cost", "1", "--ratio", "0.5"]
    command += ["--policy", "epic", "--policy", "mean-layers"]

    def run() -> dict[str, Any]:
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    found = run()
    parts = out.with_name("calibration.json.parts.jsonl")
    kept = parts.read_text()
    again = run()

    chosen, *_ = found["rows"]
    calibration = Calibration.read(out)
    assert (calibration.policy, calibration.ratio) == (chosen["policy"], 0.5)
    assert chosen["kl_answer"] == min(row["kl_answer"] for row in found["rows"])
    assert [row["num_prompts"] for row in found["expected"]["prompts"]] == [3, 3, 3]
    assert again == found
    assert parts.read_text() == kept, "nothing is measured twice"
    del command[command.index("--cost") : command.index("--cost") + 2]
    monkeypatch.setattr(Calibrator, "gains", lambda *_: [0.1, -0.1, 0.1])
    unconfirmed = run()
    assert (unconfirmed["policy"], unconfirmed["ratio"]) == DEFAULT
    assert Calibration.read(out).policy == DEFAULT[0]
    command[-1] = "cachecraft"
    with pytest.raises(ChunkCacheError, match="--policy must be one of epic"):
        run()


def test_the_calibration_is_never_written_over_the_prompts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("prompts\n")
    command = ["calibrate", "--model", str(tmp_path), "--data", str(prompts), "--out", str(prompts)]
    done = CliRunner().invoke(app, command)

    assert "is an input of the job" in str(done.exception)
    assert prompts.read_text() == "prompts\n"
