"""The command line; `ragboost --help` lists the commands.

Parses, calls, prints. Logic lives in the packages.
"""

import sys

import typer

from ragboost import __version__
from ragboost.cli.offline import batch, demo, simulate
from ragboost.cli.reuse import eval_reuse, precompute, tune_alpha
from ragboost.cli.servers import doctor, engine, serve
from ragboost.errors import RagBoostError

app = typer.Typer(
    name="ragboost",
    help="Make the prompts of a RAG application share prefixes, in front of SGLang and vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


for _command in (serve, simulate, batch, demo, doctor, engine):
    app.command()(_command)
app.command("eval-reuse")(eval_reuse)
app.command("tune-alpha")(tune_alpha)
app.command()(precompute)


def main() -> None:
    """Run the command line; a RagBoostError becomes one sentence and exit code 2."""
    try:
        app()
    except RagBoostError as error:
        typer.echo(f"ragboost: {error}", err=True)
        sys.exit(2)
