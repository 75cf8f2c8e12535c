"""`eval-reuse`: what chunk reuse does with a user's own model."""

from pathlib import Path

import typer

from ragboost.chunk_cache.selection import DEFAULT_POLICY, POLICIES


def eval_reuse(
    model: Path = typer.Option(..., help="Directory of a Hugging Face causal LM."),
    data: Path = typer.Option(
        ..., help="JSONL with question, documents and answers (texts), or with token ids."
    ),
    policy: list[str] = typer.Option(
        [], help=f"Policy to measure, repeatable; one of {', '.join(POLICIES)}."
    ),
    ratio: list[float] = typer.Option(
        [0.05, 0.1, 0.15, 0.3], help="Recompute ratio to measure, repeatable."
    ),
    granularity: int = typer.Option(1, min=1, help="Choose tokens (1) or blocks of so many."),
    max_new_tokens: int = typer.Option(32, min=1, help="Length of text answers."),
    limit: int | None = typer.Option(None, min=1, help="Read at most so many cases."),
    device: str = typer.Option("cpu", help="Where the model runs."),
    plot: Path | None = typer.Option(None, help="Write score against ratio as SVG, per task."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure what chunk reuse costs and saves with your model on your prompts."""
    from ragboost.chunk_cache.eval.command import run

    text = run(
        model,
        data,
        policies=policy or [DEFAULT_POLICY],
        ratios=ratio,
        granularity=granularity,
        max_new_tokens=max_new_tokens,
        limit=limit,
        device=device,
        plot_path=plot,
        as_json=as_json,
    )
    typer.echo(text)
