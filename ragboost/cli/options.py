"""Options that stand for settings."""

from typing import Any

import typer

from ragboost.config import field_paths


def setting(path: str) -> Any:
    """An option that overrides a setting; its help is the setting's description."""
    return typer.Option(None, help=field_paths()[path], show_default=False)


def switch(path: str, flag: str) -> Any:
    """A flag that turns a setting on."""
    return typer.Option(None, flag, help=field_paths()[path], show_default=False)


def backends(urls: list[str] | None) -> dict[str, Any]:
    """One URL is `backend.url`; several are `backends`. Either replaces what the file has."""
    if not urls:
        return {}
    return {"backend.url": urls[0], "backends": [{"url": url} for url in urls[1:] and urls]}
