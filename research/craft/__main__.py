"""Choose alpha of Cache-Craft: `python -m research.craft --model DIRECTORY --data FILE.jsonl`."""

from pathlib import Path
from typing import Literal

import typer

from ragboost.errors import RagBoostError
from research.craft.tune_alpha import run

app = typer.Typer(add_completion=False)


@app.command()
def tune_alpha(
    model: Path = typer.Option(..., metavar="DIRECTORY", help="Of a Hugging Face causal LM."),
    data: Path = typer.Option(
        ...,
        metavar="FILE.jsonl",
        help="JSONL as for eval-reuse, in order of arrival.",
    ),
    warm_up: int = typer.Option(20, min=1, help="Leading requests that only fill the chunk cache."),
    alpha: list[float] = typer.Option(
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0], help="Alpha to try, repeatable."
    ),
    desired: float = typer.Option(
        0.9, min=0.0, max=1.0, help="Share of full attention's score to reach."
    ),
    literal: bool = typer.Option(
        False, "--literal", help="Use CCI and Alg. 1 exactly as printed in the paper."
    ),
    cautious: bool = typer.Option(
        False, "--cautious", help="Distrust chunks that were computed without a chunk before them."
    ),
    order: Literal["mass", "peak", "change"] = typer.Option(
        "mass",
        help="Order of tokens: by total attention to other chunks, by its highest weight, or by "
        "the difference of their KV between versions.",
    ),
    max_new_tokens: int = typer.Option(32, min=1, help="Length of text answers."),
    device: str = typer.Option("cpu", help="Where the model runs."),
    plot: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Write score against recompute ratio to this .png or .svg; needs the extra plot.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Find the cheapest alpha of Cache-Craft that reaches the desired score (eq. 13)."""
    text = run(
        model,
        data,
        warm_up=warm_up,
        alphas=alpha,
        desired=desired,
        literal=literal,
        cautious=cautious,
        order=order,
        max_new_tokens=max_new_tokens,
        device=device,
        plot_path=plot,
        as_json=as_json,
    )
    typer.echo(text)


def main() -> None:
    try:
        app()
    except RagBoostError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
