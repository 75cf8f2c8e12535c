"""Measure policies at ratios against full attention, prompt by prompt, and keep the outcomes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Generic, NamedTuple, TypeVar

import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.full_answer import Agreement, Estimate, FullAnswer
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.errors import ChunkCacheError

Arm = tuple[str, float]  # policy and ratio
FULL, REUSE = ("full", 1.0), ("reuse", 0.0)


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    policy: str
    ratio: float
    kl: float  # of the first token to full attention, in nats
    kl_answer: float  # mean over the tokens of full attention's answer and its end
    same_first: bool  # the first token is full attention's
    same_answer: bool
    computed: float  # share of the prompt's tokens
    cpu_s: float  # processor seconds of the prefill with look-up, selection and question


@dataclass(frozen=True, slots=True)
class ArmSummary:
    policy: str
    ratio: float
    num_prompts: int
    kl: float  # mean divergence of the first token from full attention, in nats
    kl_answer: float  # the same over full attention's answer
    same_first: float  # share of equal first tokens
    same_answer: float
    cost: float  # median share of full attention's processor time


class FilledArm(NamedTuple):
    cache: RequestCache
    logits: torch.Tensor  # of the last token, (vocabulary,)
    num_computed: int  # tokens
    num_tokens: int


class MeasuredArm(NamedTuple):
    outcome: ArmOutcome
    full: FullAnswer
    agreement: Agreement
    cache: RequestCache  # full attention's answer is appended to it


def measure_arms(
    fill: Callable[[Arm], FilledArm],
    arms: Sequence[Arm],
    *,
    answer: Callable[[FilledArm], FullAnswer],
    clock: Callable[[], float] = time.process_time,
) -> Iterator[MeasuredArm]:
    """Yield the arms of a prompt, each in its own cache; full attention's is answered first."""
    full: FullAnswer | None = None
    for policy, ratio in [FULL, *(arm for arm in arms if arm != FULL)]:
        begin = clock()
        filled = fill((policy, ratio))
        cpu_s = clock() - begin
        if full is None:
            full = answer(filled._replace(cache=filled.cache.clone()))
        found = full.compare(filled.cache, filled.logits)
        outcome = ArmOutcome(
            policy,
            ratio,
            kl=found.kl,
            kl_answer=found.kl_answer,
            same_first=found.same_first,
            same_answer=found.same_answer,
            computed=filled.num_computed / filled.num_tokens,
            cpu_s=cpu_s,
        )
        yield MeasuredArm(outcome, full, found, filled.cache)


def check_ratios(ratios: Sequence[float]) -> None:
    for ratio in ratios:
        if not 0.0 < ratio < 1.0:
            raise ChunkCacheError(f"--ratio must be between 0 and 1, got {ratio}")


def measure_case(
    reuse: ChunkReuse,
    case: Case,
    arms: Sequence[Arm],
    *,
    max_tokens: int,
    granularity: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[MeasuredArm]:
    """Yield the arms of a prompt whose missing chunks are computed alone before."""
    reuse.precompute(case.system, case.chunks)

    def fill(arm: Arm) -> FilledArm:
        policy, ratio = arm
        parts = case.system, case.chunks, case.question
        result = reuse.prefill(*parts, policy=policy, ratio=ratio, granularity=granularity)
        computed = result.counts.recomputed + result.counts.computed
        return FilledArm(result.cache, result.logits, computed, result.num_tokens)

    def answer(full: FilledArm) -> FullAnswer:
        return FullAnswer(
            reuse.adapter,
            full.cache,
            full.logits,
            position=full.num_tokens,
            max_tokens=max_tokens,
            stop_ids=stop_ids(reuse),
        )

    return measure_arms(fill, arms, answer=answer, clock=clock)


def stop_ids(reuse: ChunkReuse) -> list[int | None]:
    config = reuse.adapter.model.generation_config
    end = config.eos_token_id if config else None
    return end if isinstance(end, list) else [end]


def summarise(outcomes: Sequence[ArmOutcome], full: Sequence[ArmOutcome]) -> ArmSummary:
    return ArmSummary(
        outcomes[0].policy,
        outcomes[0].ratio,
        num_prompts=len(outcomes),
        kl=fmean(outcome.kl for outcome in outcomes),
        kl_answer=fmean(outcome.kl_answer for outcome in outcomes),
        same_first=fmean(outcome.same_first for outcome in outcomes),
        same_answer=fmean(outcome.same_answer for outcome in outcomes),
        cost=cost(outcomes, full),
    )


def cost(outcomes: Sequence[ArmOutcome], full: Sequence[ArmOutcome]) -> float:
    return median(a.cpu_s / max(1e-9, b.cpu_s) for a, b in zip(outcomes, full, strict=True))


T = TypeVar("T", bound=ArmOutcome)


class OutcomeFile(Generic[T]):
    """Outcomes of prompts, a line for each as it comes; later lines add arms."""

    def __init__(self, path: Path | None, kind: type[T]) -> None:
        self._path = path
        self._found: dict[str, dict[Arm, T]] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8", errors="replace") as file:  # it can be written, too
            file.seek(0)
            lines = file.read().splitlines()
        for line in lines:
            try:
                row = json.loads(line)
                self._add(row["id"], [kind(**fields) for fields in row["outcomes"]])
            except (ValueError, TypeError, KeyError):  # the last line of an interrupted run
                continue

    def missing(self, prompt_id: str, arms: Sequence[Arm]) -> list[Arm]:
        found = self._found.get(prompt_id, {})
        return [arm for arm in arms if arm not in found]

    def add(self, prompt_id: str, outcomes: Sequence[T]) -> None:
        self._add(prompt_id, outcomes)
        if self._path is not None:
            row = {"id": prompt_id, "outcomes": [asdict(outcome) for outcome in outcomes]}
            with self._path.open("a") as file:
                file.write("\n" + json.dumps(row))  # behind a line that was cut off

    def of(self, prompt_id: str, arm: Arm) -> T:
        return self._found[prompt_id][arm]

    def _add(self, prompt_id: str, outcomes: Sequence[T]) -> None:
        arms = {(outcome.policy, outcome.ratio): outcome for outcome in outcomes}
        self._found[prompt_id] = {**arms, **self._found.get(prompt_id, {})}


def table(rows: Sequence[ArmSummary], scores: Mapping[Arm, Estimate] | None = None) -> str:
    head = ["policy", "ratio", "KL first", "KL answer", "same first", "same answer", "cost"]
    body = [
        [
            row.policy,
            f"{row.ratio:.2f}",
            f"{row.kl:.4f}",
            f"{row.kl_answer:.4f}",
            f"{row.same_first:.2f}",
            f"{row.same_answer:.2f}",
            f"{row.cost:.3f}",
        ]
        for row in rows
    ]
    if scores is not None:
        head[2:2] = ["score", "+-"]
        for row, cells in zip(rows, body, strict=True):
            cells[2:2] = [f"{value:.3f}" for value in scores[row.policy, row.ratio]]
    lines = [head, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
