"""The command line; `ragboost --help` lists the commands.

Parses arguments, calls the packages and prints.
"""

import inspect
import sys

import typer

from ragboost import __version__
from ragboost.cli.bench import app as bench
from ragboost.cli.evaluation import eval_order
from ragboost.cli.offline import batch, demo, simulate
from ragboost.cli.options import Command, CommandGroup
from ragboost.cli.reuse import calibrate, eval_reuse, precompute
from ragboost.cli.servers import doctor, engine, serve
from ragboost.errors import RagBoostError

_HELP = """Make the prompts of a RAG application share prefixes, in front of SGLang and vLLM.

\b
ragboost demo                                    what it saves, shown on this machine
ragboost simulate TRACE.jsonl                    what it would save of your traffic
ragboost serve --backend http://127.0.0.1:8000   the proxy in front of your server
ragboost doctor --backend http://127.0.0.1:8000  what that server lacks, and the flag for it

Clients then use http://127.0.0.1:8080/v1; http://127.0.0.1:8080/dashboard shows what is saved.
"""
_SERVERS = "Servers"
_TRAFFIC = "What it saves, and batches"
_REUSE = "Chunk reuse, with your own model"

app = typer.Typer(
    name="ragboost",
    help=_HELP,
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


app.command(rich_help_panel=_SERVERS)(serve)
app.command(rich_help_panel=_SERVERS)(doctor)
app.command(rich_help_panel=_SERVERS)(engine)
app.command(rich_help_panel=_TRAFFIC)(demo)
app.command(rich_help_panel=_TRAFFIC)(simulate)
app.command(rich_help_panel=_TRAFFIC)(batch)
app.command("eval-order", rich_help_panel=_TRAFFIC)(eval_order)
app.add_typer(bench, name="bench", cls=CommandGroup, rich_help_panel=_TRAFFIC)
app.command("eval-reuse", rich_help_panel=_REUSE)(eval_reuse)
app.command(rich_help_panel=_REUSE)(calibrate)
app.command(rich_help_panel=_REUSE)(precompute)


def _joined(text: str) -> str:
    """Join the lines of each paragraph but examples, since help breaks them to the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith("\b") else p.replace("\n", " ") for p in paragraphs)


for _group in (app, bench):
    for _command in _group.registered_commands:
        _command.cls = Command
        _command.help = _joined((_command.callback and _command.callback.__doc__) or "")


def main() -> None:
    """Run the command line; print a RagBoostError as one sentence and exit with code 2."""
    try:
        app()
    except RagBoostError as error:
        typer.echo(f"ragboost: {error}", err=True)
        sys.exit(2)
