"""Options that stand for settings."""

from typing import Any

import typer

from ragboost.config import Settings, field_paths


def setting(path: str, *, metavar: str | None = None) -> Any:
    """An option that overrides a setting; its help is the setting's description and default."""
    section, _, name = path.partition(".")
    default = getattr(Settings.model_fields[section].default, name)
    text = field_paths()[path]
    if default is not None:
        text = f"{text.removesuffix('.')}; by default {default}."
    return typer.Option(None, help=text, show_default=False, metavar=metavar)


def switch(path: str, flag: str) -> Any:
    """A flag that turns a setting on."""
    return typer.Option(None, flag, help=field_paths()[path], show_default=False)


def backends(urls: list[str] | None) -> dict[str, Any]:
    """One URL is `backend.url`; several are `backends`. Either replaces what the file has."""
    if not urls:
        return {}
    return {"backend.url": urls[0], "backends": [{"url": url} for url in urls[1:] and urls]}
