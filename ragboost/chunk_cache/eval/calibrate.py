"""`ragboost calibrate`: choose policy and ratio by what they do to a user's prompts. Half of them
choose, the others say what it is worth: without a gain there the default stays. Costs are processor
time as a share of full attention's; what costs too much is soon dropped."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ragboost.chunk_cache.core.loading import find_tokenizer, load
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.arms import (
    FULL,
    REUSE,
    Arm,
    ArmOutcome,
    ArmSummary,
    OutcomeFile,
    check_ratios,
    cost,
    measure_case,
    summarise,
    table,
)
from ragboost.chunk_cache.eval.cases import Case, read_cases
from ragboost.chunk_cache.eval.full_answer import Estimate, estimate
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO
from ragboost.chunk_cache.selection.calibration import (
    Calibration,
    calibrated_policies,
    shape_digest,
)
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.config.model_directory import model_name
from ragboost.errors import ChunkCacheError

DEFAULT: Arm = (DEFAULT_POLICY, DEFAULT_RATIO)
MAX_ANSWER_TOKENS = 24
MIN_PROMPTS = 4
_SHOWN = 10
_FIRST = 3  # prompts after which an arm's cost is known
Progress = Callable[[str, int, int], None]


class Calibrator:
    """Measures arms on the prompts of one model, but those that earlier runs have measured."""

    def __init__(self, reuse: ChunkReuse, outcomes: OutcomeFile[ArmOutcome]) -> None:
        self._reuse, self._outcomes = reuse, outcomes
        self._model = reuse.library.identity.model

    def measure(self, case: Case, arms: Sequence[Arm]) -> None:
        missing = self._outcomes.missing(self._id(case), [FULL, *arms])
        if not missing:
            return
        measured = measure_case(
            self._reuse, case, missing, max_tokens=MAX_ANSWER_TOKENS, clock=_clock(self._reuse)
        )
        self._outcomes.add(self._id(case), [arm.outcome for arm in measured])

    def summary(self, cases: Sequence[Case], arm: Arm) -> ArmSummary:
        return summarise(self._of(cases, arm), self._of(cases, FULL))

    def cost(self, cases: Sequence[Case], arm: Arm) -> float:
        return cost(self._of(cases, arm), self._of(cases, FULL))

    def gains(self, cases: Sequence[Case], arm: Arm, other: Arm) -> list[float]:
        """Return by how much nearer than another's an arm's answer to each prompt is."""
        pairs = zip(self._of(cases, other), self._of(cases, arm), strict=True)
        return [theirs.kl_answer - own.kl_answer for theirs, own in pairs]

    def _of(self, cases: Sequence[Case], arm: Arm) -> list[ArmOutcome]:
        return [self._outcomes.of(self._id(case), arm) for case in cases]

    def _id(self, case: Case) -> str:
        prompt = json.dumps([self._model, case.system, case.chunks, case.question])
        return hashlib.sha256(prompt.encode()).hexdigest()[:32]


def choose(
    calibrator: Calibrator,
    cases: Sequence[Case],
    arms: Sequence[Arm],
    *,
    max_cost: float | None,
    on_progress: Progress,
) -> list[ArmSummary]:
    """Measure arms, and return those that cost at most `max_cost` (None: what the default costs),
    the nearest to full attention first."""
    kept = list(dict.fromkeys([*([DEFAULT] if max_cost is None else []), *arms]))
    limit = max_cost
    for number, case in enumerate(cases, 1):
        calibrator.measure(case, kept)
        seen = cases[:number]
        if number >= min(_FIRST, len(cases)):
            limit = calibrator.cost(seen, DEFAULT) if max_cost is None else max_cost
            kept = [arm for arm in kept if calibrator.cost(seen, arm) <= limit]
        on_progress("choosing", number, len(cases))
    if not kept:
        raise ChunkCacheError(f"every policy and ratio costs more than {max_cost:g} of a prefill")
    return sorted(
        (calibrator.summary(cases, arm) for arm in kept), key=lambda summary: summary.kl_answer
    )


def _clock(reuse: ChunkReuse) -> Callable[[], float]:
    """Return the clock of an arm's cost: processor time, or time on a GPU."""
    device = reuse.adapter.device
    if device.type != "cuda":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def _prompts(data: Path, model: Path, *, limit: int) -> list[Case]:
    read = read_cases(data, tokenizer=find_tokenizer(model), limit=limit)
    # A prompt that both halves have would confirm its own choice.
    cases = list({(each.system, each.chunks, each.question): each for each in read}.values())
    if len(cases) < MIN_PROMPTS:
        raise ChunkCacheError(
            f"{data} has {len(cases)} different prompts; at least {MIN_PROMPTS} are needed"
        )
    return cases


def run(
    model: Path,
    data: Path,
    out: Path,
    *,
    policies: Sequence[str],
    ratios: Sequence[float],
    max_cost: float | None,
    limit: int,
    device: str,
    as_json: bool,
    on_progress: Progress,
) -> str:
    """Calibrate, write the file, and return a table or JSON. An interrupted run goes on."""
    if unknown := sorted(set(policies) - set(calibrated_policies())):
        known = ", ".join(calibrated_policies())
        raise ChunkCacheError(f"--policy must be one of {known}, got {unknown[0]!r}")
    check_ratios(ratios)
    if out.is_dir():
        raise ChunkCacheError(f"cannot write {out}: it is a directory")
    cases = _prompts(data, model, limit=limit)
    adapter, _, _ = load(model, device=device)
    for case in cases:
        case.check_fits(adapter, max_answer_tokens=MAX_ANSWER_TOKENS)
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=4 << 30))
    try:
        outcomes = OutcomeFile(out.with_name(f"{out.name}.parts.jsonl"), ArmOutcome)
    except OSError as error:
        raise ChunkCacheError(f"cannot write {out}: {error.strerror}") from error
    calibrator = Calibrator(reuse, outcomes)
    choosing, held_out = cases[::2], cases[1::2]
    arms = [(policy, ratio) for policy in policies for ratio in ratios]
    rows = choose(calibrator, choosing, arms, max_cost=max_cost, on_progress=on_progress)
    best: Arm = (rows[0].policy, rows[0].ratio)
    for number, case in enumerate(held_out, 1):
        calibrator.measure(case, [best, DEFAULT, REUSE])
        on_progress("checking", number, len(held_out))
    checked = [calibrator.summary(held_out, arm) for arm in dict.fromkeys([best, DEFAULT, REUSE])]
    gain = estimate(calibrator.gains(held_out, best, DEFAULT))
    # What the other half does not confirm is chance, unless the default costs too much.
    is_kept = best == DEFAULT or gain.mean > gain.error or max_cost is not None
    chosen = best if is_kept else DEFAULT
    expected = {
        "model": model_name(model),
        "prompts": [asdict(summary) for summary in checked],
        "gain": gain.mean,
        "gain_error": gain.error,
    }
    policy, ratio = chosen
    written = Calibration(shape=shape_digest(adapter), policy=policy, ratio=ratio)
    written.write(out, expected=expected)
    if as_json:
        found = {"rows": [asdict(row) for row in rows], "expected": expected, "file": str(out)}
        return json.dumps({"policy": policy, "ratio": ratio, **found})
    return _text(out, rows, checked, gain, chosen=chosen)


def _text(
    out: Path,
    rows: Sequence[ArmSummary],
    checked: Sequence[ArmSummary],
    gain: Estimate,
    *,
    chosen: Arm,
) -> str:
    best = rows[0].policy, rows[0].ratio
    said = (
        f"{best[0]} at {best[1]:g} is nearer to full attention by {gain.mean:.4f} +- "
        f"{gain.error:.4f} nats a token than the default there."
    )
    if best == DEFAULT:
        said = "The default is the nearest that costs no more."
    elif chosen != best:
        said += " That may be chance, so the default stays."
    return f"""{rows[0].num_prompts} prompts chose:
{table(rows[:_SHOWN])}

{checked[0].num_prompts} other prompts, on which nothing was chosen:
{table(checked)}

{said}
{chosen[0]} at {chosen[1]:g} is in {out}, for `calibration` of chunk reuse."""
