"""`ragboost chunks`: what stored chunks need."""

import json
from pathlib import Path

import typer

from ragboost.config.model_directory import find_model

app = typer.Typer(help="Plan the memory for stored chunks.", no_args_is_help=True)

_GIB = 1 << 30


@app.callback()
def _chunks() -> None:
    """Keep `size` a command of its own, though it is the only one."""


@app.command()
def size(
    model: Path = typer.Option(
        ..., metavar="MODEL", help="Directory or name of the model, or its config.json."
    ),
    documents: int = typer.Option(..., min=1, help="Number of documents."),
    tokens: int = typer.Option(512, min=1, help="Tokens of a document, on average."),
    dtype: str = typer.Option("bfloat16", help="Number format of the engine's KV cache."),
    ranks: int = typer.Option(1, min=1, help="Tensor-parallel size: each rank stores its part."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print what a corpus needs in memory, on disk or in a remote store.

    Reads the model's configuration only; no weights, no engine.

    \b
    ragboost chunks size --model Qwen/Qwen3-0.6B --documents 10000 --tokens 512
    """
    from ragboost.chunk_cache.store.sizes import corpus_sizes

    found = find_model(model, only="config.json")
    sizes = corpus_sizes(found, documents=documents, tokens=tokens, dtype=dtype, ranks=ranks)
    if as_json:
        typer.echo(json.dumps(sizes._asdict()))
        return
    typer.echo(
        f"{sizes.layers} layers x 2 x {sizes.kv_heads} heads x {sizes.head_dim} x "
        f"{sizes.value_bytes} bytes = {sizes.bytes_per_token:,} bytes a token\n"
        f"{documents:,} documents x {tokens:,} tokens, {ranks} rank(s), each rank:\n"
        f"  memory                 {sizes.memory_bytes / _GIB:10.2f} GiB\n"
        f"  disk or remote         {sizes.file_bytes / _GIB:10.2f} GiB, as files\n"
        "as much again at most for KV computed behind other documents\n"
        f"host_bytes={sizes.host_bytes} keeps all of them in memory, public or pinned ones too "
        "if these are at most half\n"
        f"host_bytes={sizes.host_bytes_tiered} beside one place that they are written to, as for "
        "directory or remote"
    )
