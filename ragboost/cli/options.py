"""Options that several commands have, and those that override settings."""

import json
import os
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ragboost.config import Settings, field_paths
from ragboost.config.model_directory import check_model
from ragboost.errors import ConfigError, RequestError


class _FlagHelp:
    """Shows flags as flags: `--json`, not `--json <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_FlagHelp, TyperCommand):
    """A command of `ragboost`."""


class CommandGroup(_FlagHelp, TyperGroup):
    """A group of commands."""


AS_JSON: bool = typer.Option(False, "--json", help="Print one JSON object.")
PROGRESS: bool | None = typer.Option(
    None, "--progress/--no-progress", help="Progress bar; by default on a terminal."
)
CONFIG: Path | None = typer.Option(
    None, "--config", metavar="FILE", help="TOML file of settings; by default ./ragboost.toml."
)
MODEL: Path = typer.Option(
    ...,
    metavar="MODEL",
    help="Directory of a Hugging Face causal LM, its name on the hub, or that of a fetched one.",
)
CORPUS: Path | None = typer.Option(
    None, metavar="FILE.jsonl", help="JSONL of the documents that `doc_ids` refer to."
)

BODY: str = typer.Option(
    "{}", metavar="JSON", help="Further fields of each request; null removes a field."
)
KEY_ENV: str = typer.Option("OPENAI_API_KEY", help="Environment variable with the endpoint's key.")


def setting(path: str, *, metavar: str | None = None) -> Any:
    """Return an option that overrides a setting, with the setting's description as help."""
    section, _, name = path.partition(".")
    default = getattr(Settings.model_fields[section].default, name)
    text = field_paths()[path]
    if default is not None:
        text = f"{text.removesuffix('.')}; by default {default}."
    return typer.Option(None, help=text, show_default=False, metavar=metavar)


def switch(path: str, flag: str) -> Any:
    return typer.Option(None, flag, help=field_paths()[path], show_default=False)


def backends(urls: list[str] | None) -> dict[str, Any]:
    """Map one URL to `backend.url` and several to `backends`; both override the file."""
    if not urls:
        return {}
    return {"backend.url": urls[0], "backends": [{"url": url} for url in urls[1:] and urls]}


def check_paths(**paths: Path | None) -> None:
    """Check that the path of each option exists, and that `model` is a model directory.

    Raises:
        ConfigError: one does not or is not; the message names the option.
    """
    for name, path in paths.items():
        if name == "model" and path is not None:
            check_model(path, option="--model")
        elif path is not None and not path.exists():
            raise ConfigError(f"--{name} {path} does not exist")


def api_key(variable: str) -> str:
    """Read the option `--key-env`; empty without a key. Raises `ConfigError`."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the API key in {variable} has characters that no header can carry")
    return key


def json_fields(text: str) -> dict[str, Any]:
    """Read the option `--body`."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--body must be a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"--body must be a JSON object, got {text!r}")
    return fields
