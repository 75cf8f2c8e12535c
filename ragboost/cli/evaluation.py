"""The command `eval-order`: what order, hints and de-duplication do to a model's answers."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ragboost.cli.options import AS_JSON, BODY, CORPUS, KEY_ENV, PROGRESS, api_key, json_fields
from ragboost.config import load_settings
from ragboost.errors import RequestError

if TYPE_CHECKING:
    from ragboost.evaluation.loading import LoadedQuestions
    from ragboost.evaluation.results import OrderEvaluation
    from ragboost.evaluation.run import OrderRun

_SYSTEM = "Answer the question from the documents, in as few words as possible."
_TABLE_WIDTH = 100


_ARM: list[str] = typer.Option(
    [], metavar="ARM", help="Repeatable, or all; by default retriever, boosted, boosted-no-hints."
)
_METRIC: str = typer.Option("f1", help="Score of the last sentence: em, f1 or contains.")
_ANSWERS: Path | None = typer.Option(
    None,
    metavar="FILE",
    help="Keep answers here, so that a stopped run can continue; by default beside QUESTIONS.",
)


def eval_order(
    questions: Path = typer.Argument(
        ..., metavar="QUESTIONS", help="Questions with documents and right answers."
    ),
    endpoint: str = typer.Option(..., metavar="URL", help="Any OpenAI-compatible server."),
    model: str = typer.Option(..., help="The model's name there."),
    corpus: Path | None = CORPUS,
    limit: int | None = typer.Option(
        None, min=1, metavar="N", help="Ask only the first N questions."
    ),
    arm: list[str] = _ARM,
    metric: str = _METRIC,
    system: str = typer.Option(_SYSTEM, help="System message; empty for none."),
    max_tokens: int = typer.Option(64, min=1, help="Longest answer."),
    body: str = BODY,
    key_env: str = KEY_ENV,
    concurrency: int = typer.Option(8, min=1, max=256, help="Requests at a time."),
    timeout: float = typer.Option(
        120.0, min=1.0, metavar="SECONDS", help="Longest wait for a response."
    ),
    answers: Path | None = _ANSWERS,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before the first request."),
    seed: int = typer.Option(0, min=0, help="Seed of shuffled orders and intervals."),
    as_json: bool = AS_JSON,
    progress: bool | None = PROGRESS,
) -> None:
    """Measure whether your model answers worse when documents are reordered.

    Asks each question in retriever order and as RAGBoost would send it, with and without hints, and
    compares the answers. Settings come from ragboost.toml and the environment, as for `serve`.

    \b
    ragboost eval-order questions.jsonl --endpoint http://127.0.0.1:8000 --model MODEL
    """
    from ragboost.batch.files import check_not_input
    from ragboost.evaluation.answers import AnswerFile
    from ragboost.evaluation.endpoint import ChatEndpoint
    from ragboost.evaluation.run import METRICS

    if metric not in METRICS:
        raise RequestError(f"--metric must be one of {', '.join(METRICS)}, got {metric!r}")
    asked = ChatEndpoint(
        endpoint,
        model=model,
        api_key=api_key(key_env),
        body=json_fields(body),
        max_tokens=max_tokens,
        timeout_s=timeout,
    )
    loaded = _load(questions, corpus=corpus, limit=limit)
    make_run = _with_arms(arm, loaded)
    answers = answers or questions.with_name(questions.name + ".answers.jsonl")
    check_not_input(answers, inputs=[questions, *([corpus] if corpus else [])])
    kept = AnswerFile(answers)
    run = make_run(endpoint=asked, answers=kept, system=system, seed=seed)
    _ask(run, max_tokens, is_sure=yes, concurrency=concurrency, progress=progress)
    _show(run.result(metric=metric), run.failures, as_json=as_json)


def _load(path: Path, *, corpus: Path | None, limit: int | None) -> "LoadedQuestions":
    from ragboost.evaluation.loading import load_questions

    loaded = load_questions(path, corpus=corpus, limit=limit)
    if loaded.num_rejected:
        more = "; ".join(loaded.problems)
        typer.echo(
            f"warning: malformed records skipped: {loaded.num_rejected:,} ({more})", err=True
        )
    return loaded


def _with_arms(names: Sequence[str], loaded: "LoadedQuestions") -> Callable[..., "OrderRun"]:
    """Return `OrderRun` with these arms: each changes the settings of this machine."""
    from ragboost.evaluation.arms import choose_arms
    from ragboost.evaluation.run import OrderRun

    has_conversations = any(question.conversation is not None for question in loaded.questions)
    arms = choose_arms(names, has_conversations=has_conversations)
    settings = {arm.name: load_settings(arm.changes) for arm in arms}
    return partial(OrderRun, loaded.questions, arms, settings)


def _ask(
    run: "OrderRun",
    max_tokens: int,
    *,
    is_sure: bool,
    concurrency: int,
    progress: bool | None,
) -> None:
    from ragboost.batch.display import progress_bar

    with progress_bar(progress) as on_progress:
        run.render(on_progress)
    cost = run.estimate(max_tokens=max_tokens)
    typer.echo(cost.sentence(), err=True)
    if cost.num_missing and not is_sure:
        try:
            is_sure = typer.confirm("Ask?", err=True)
        except typer.Abort:
            if sys.stdin.isatty():
                raise
            raise RequestError(
                "no terminal on which to confirm: --yes (-y) sends the requests without asking"
            ) from None
        if not is_sure:
            raise typer.Abort
    with progress_bar(progress) as on_progress:
        run.ask(concurrency=concurrency, on_progress=on_progress)


def _show(result: "OrderEvaluation", failures: Mapping[str, str], *, as_json: bool) -> None:
    from ragboost.evaluation.results import result_table

    if failures:
        first = next(iter(failures.values()))
        typer.echo(
            f"warning: requests that failed: {len(failures):,}, left out of the comparison; "
            f"run again to repeat them. The first: {first}",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    else:
        # Better broken by a narrow terminal than with numbers cut off.
        Console(width=max(Console().width, _TABLE_WIDTH)).print(result_table(result))
        typer.echo(result.conclusion())
