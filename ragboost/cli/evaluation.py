"""The command `eval-order`: what order, hints and de-duplication do to a model's answers."""

import json
import os
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ragboost.config import load_settings
from ragboost.errors import RequestError

_SYSTEM = "Answer the question from the documents, in as few words as possible."


def eval_order(
    questions: Path = typer.Argument(
        ..., metavar="QUESTIONS", help="Questions with documents and right answers."
    ),
    endpoint: str = typer.Option(..., metavar="URL", help="Any OpenAI-compatible server."),
    model: str = typer.Option(..., help="The model's name there."),
    file_format: str | None = typer.Option(
        None,
        "--format",
        help="plain, mtrag, multihop-rag, musique, hotpotqa, 2wiki, narrativeqa or qasper; by "
        "default recognised.",
    ),
    corpus: Path | None = typer.Option(
        None, metavar="FILE", help="Documents to retrieve from, or that `doc_ids` refer to."
    ),
    k: int = typer.Option(
        10, "--k", min=1, help="Documents per question, where the file holds no retrieval."
    ),
    limit: int | None = typer.Option(None, min=1, help="Most questions to ask."),
    arm: list[str] = typer.Option([], help="Arm to ask, repeatable; by default all."),
    metric: str | None = typer.Option(
        None, help="em, f1, contains or judge, for the last sentence; by default f1 or judge."
    ),
    judge: str | None = typer.Option(None, metavar="URL", help="Endpoint that judges answers."),
    judge_model: str | None = typer.Option(None, help="The judge; by default the same model."),
    system: str = typer.Option(_SYSTEM, help="System message; empty for none."),
    max_tokens: int = typer.Option(64, min=1, help="Longest answer."),
    body: str = typer.Option(
        "{}", metavar="JSON", help="Further fields of each request; null removes a field."
    ),
    key_env: str = typer.Option(
        "OPENAI_API_KEY", help="Environment variable with the endpoint's key."
    ),
    judge_key_env: str = typer.Option("OPENAI_API_KEY", help="The same for the judge's key."),
    concurrency: int = typer.Option(8, min=1, max=256, help="Requests at a time."),
    timeout: float = typer.Option(120.0, min=1.0, metavar="SECONDS", help="For one response."),
    answers: Path | None = typer.Option(
        None, metavar="FILE", help="Keeps answers, to go on later; by default beside QUESTIONS."
    ),
    price_in: float | None = typer.Option(None, min=0.0, help="Per million prompt tokens."),
    price_out: float | None = typer.Option(None, min=0.0, help="Per million new tokens."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before the first request."),
    seed: int = typer.Option(0, help="Of shuffled orders and of the intervals."),
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Write the differences to this .png or .svg; extra plot."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    progress: bool | None = typer.Option(
        None, "--progress/--no-progress", help="Progress bar; by default on a terminal."
    ),
) -> None:
    """Measure whether reordering costs answers, with your model and your questions.

    Asks each question in retriever order and as RAGBoost would send it, with and without hints, and
    compares the answers. Settings come from ragboost.toml and the environment, as for `serve`.

    \b
    ragboost eval-order questions.jsonl --endpoint http://127.0.0.1:8000 --model MODEL
    """
    from ragboost.batch.report import progress_bar
    from ragboost.evaluation.answers import AnswerFile
    from ragboost.evaluation.arms import choose_arms
    from ragboost.evaluation.endpoint import ChatEndpoint
    from ragboost.evaluation.loading import load_questions
    from ragboost.evaluation.report import result_table, write_plot
    from ragboost.evaluation.run import OrderRun
    from ragboost.plots import check_plot

    if plot is not None:
        check_plot(plot)
    chosen_metric = _metric(metric, has_judge=judge is not None)
    fields = _fields(body)
    common: dict[str, Any] = {"max_tokens": max_tokens, "timeout_s": timeout, "body": fields}
    asked = ChatEndpoint(endpoint, model=model, api_key=os.environ.get(key_env, ""), **common)
    judging = None
    if judge is not None:
        judging = ChatEndpoint(
            judge,
            model=judge_model or model,
            api_key=os.environ.get(judge_key_env, ""),
            **{**common, "max_tokens": 16},
        )
    loaded = load_questions(questions, name=file_format, corpus=corpus, k=k, limit=limit)
    if loaded.num_rejected:
        more = "; ".join(loaded.problems)
        typer.echo(
            f"warning: malformed records skipped: {loaded.num_rejected:,} ({more})", err=True
        )
    has_conversations = any(one.conversation is not None for one in loaded.questions)
    arms = choose_arms(arm, has_conversations=has_conversations)
    settings = {one.name: load_settings(one.changes) for one in arms}
    kept = AnswerFile(answers or questions.with_name(questions.name + ".answers.jsonl"))
    run = OrderRun(
        loaded.questions,
        arms,
        settings,
        endpoint=asked,
        answers=kept,
        judge=judging,
        system=system,
        seed=seed,
    )
    console = Console(stderr=True)
    is_shown = console.is_terminal if progress is None else progress
    try:
        with progress_bar(console, is_shown=is_shown) as move:
            run.render(move)
        cost = run.estimate(max_tokens=max_tokens, price_in=price_in, price_out=price_out)
        typer.echo(cost.sentence(), err=True)
        if (cost.num_missing or cost.num_verdicts) and not yes:
            typer.confirm("Ask?", abort=True, err=True)
        with progress_bar(console, is_shown=is_shown) as move:
            run.ask(concurrency=concurrency, on_progress=move)
    finally:
        kept.close()
    result = run.result(metric=chosen_metric)
    if run.failures:
        first = next(iter(run.failures.values()))
        typer.echo(
            f"warning: requests that failed: {len(run.failures):,}, left out of the comparison; "
            f"run again to repeat them. The first: {first}",
            err=True,
        )
    if plot is not None:
        write_plot(result, plot)
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    else:
        Console().print(result_table(result))
        typer.echo(result.conclusion())


def _metric(name: str | None, *, has_judge: bool) -> str:
    known = ("em", "f1", "contains", *(["judge"] if has_judge else []))
    if name is None:
        return "judge" if has_judge else "f1"
    if name not in known:
        hint = "; judge needs --judge URL" if name == "judge" else ""
        raise RequestError(f"--metric must be one of {', '.join(known)}, got {name!r}{hint}")
    return name


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--body must be a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"--body must be a JSON object, got {text!r}")
    return fields
