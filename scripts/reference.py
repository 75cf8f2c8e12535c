"""Generate the reference pages from the code: versions, settings, metrics, HTTP routes, commands.

    python -m scripts.reference
    python -m scripts.reference --check

Writes `docs/reference/`; `--check` writes nothing
and exits with 1 if a page is stale.
"""

import argparse
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from prometheus_client import CollectorRegistry
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from ragboost.config import ENV_PREFIX, Settings
from ragboost.proxy.app import create_app
from scripts.compatibility import compatibility_page
from scripts.openapi_page import openapi_page
from scripts.proxy_openapi import proxy_document

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "reference"
_HEADER = "<!-- Written by `make reference`; edit the code instead. -->\n\n"


def settings_page() -> str:
    """Return the page of all settings with their defaults, by section."""
    lines = [
        "# Settings",
        "",
        "Flags beat environment variables beat `ragboost.toml` beat these defaults. The variable "
        f"of `proxy.port` is `{ENV_PREFIX}PROXY__PORT`; lists and tables are given as JSON there.",
        "",
        "```toml",
        "# ragboost.toml",
        "[proxy]",
        "port = 8081",
        "```",
    ]
    for name, holder in Settings.model_fields.items():
        lines += ["", f"## `{name}`", ""]
        if isinstance(holder.default, BaseModel):
            section = type(holder.default)
            lines += [_text(section.__doc__ or ""), "", *_fields(section)]
        else:
            lines += [_text(holder.description or "")]
            for item in get_args(holder.annotation):
                if isinstance(item, type) and issubclass(item, BaseModel):
                    lines += ["", *_fields(item)]
    from ragboost.chunk_cache.core.settings import EngineChunkSettings

    lines += [
        "",
        "## Chunk reuse in engines",
        "",
        "`[engine.chunks]` of the embedded engine; in vLLM and SGLang `name=value` behind "
        "[`python -m ragboost.chunk_cache`](../chunk-cache.md#use-it).",
        "",
        *_fields(EngineChunkSettings),
    ]
    return "\n".join(lines) + "\n"


def _fields(section: type[BaseModel]) -> Iterator[str]:
    yield "| setting | default | |"
    yield "|---|---|---|"
    for name, info in section.model_fields.items():
        yield f"| `{name}` | {_default(info)} | {_text(info.description or '')}{_choices(info)} |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value: Any = info.default
    if isinstance(value, SecretStr):
        return "a secret"
    return f"`{value!r}`" if not isinstance(value, Path) else f"`{str(value)!r}`"


def _choices(info: FieldInfo) -> str:
    is_literal = str(get_origin(info.annotation)) == "typing.Literal"
    names = [f"`{choice}`" for choice in get_args(info.annotation)] if is_literal else []
    return f" One of {', '.join(names)}." if names else ""


def metrics_page() -> str:
    """Return the page of the proxy's metrics with types and labels."""
    settings = Settings.model_validate({"session": {"store": "redis", "url": "redis://host"}})
    registry = create_app(settings).state.metrics.registry
    lines = [
        "# Metrics",
        "",
        "At `/metrics`, in Prometheus' text format. Labels never hold document, session or request "
        "ids. `ragboost_replica_*` are there with Redis.",
        "",
        "| metric | type | labels | |",
        "|---|---|---|---|",
    ]
    lines += _metric_rows(registry)
    from ragboost.chunk_cache.http.metrics import ReuseMetrics

    engines = CollectorRegistry()
    ReuseMetrics(engines)
    lines += [
        "",
        "vLLM and SGLang that [reuse chunks](../chunk-cache.md) show these beside their own. Those "
        "of the store are there with one worker of the model.",
        "",
        "| metric | type | labels | |",
        "|---|---|---|---|",
        *_metric_rows(engines),
    ]
    return "\n".join(lines) + "\n"


def _metric_rows(registry: CollectorRegistry) -> Iterator[str]:
    families = {family.name: family for family in registry.collect()}
    for name, family in sorted(families.items()):
        # NOTE: the library has no public way to get the label names of a metric without samples.
        holders = (family, registry._names_to_collectors.get(name))
        names = [label for holder in holders for label in getattr(holder, "_labelnames", ())]
        labels = ", ".join(f"`{label}`" for label in names)
        full = f"{name}_total" if family.type == "counter" else name
        yield f"| `{full}` | {family.type} | {labels} | {_text(family.documentation)} |"


def http_page() -> str:
    """Return the page of the proxy's routes, from its OpenAPI document."""
    return openapi_page(
        proxy_document(),
        title="HTTP API",
        introduction="All other requests are forwarded to the backend unchanged. Completions have "
        "the backend's body with the fields below added; its responses and errors are relayed byte "
        "for byte. The errors listed are the proxy's own, `ProxyErrorResponse` objects. "
        "More: "
        "[the proxy](../proxy.md), [the chat-session API](../conversations.md#the-session-api).",
    )


def engine_http_page() -> str:
    """Return the page of the embedded engine's routes."""
    from ragboost.engine.http.routes import ROUTES
    from scripts.engine_schemas import BODIES, RESPONSES, schemas

    lines = [
        "# HTTP API of the embedded engine",
        "",
        "In OpenAI's and vLLM's shapes. Request fields that are not listed are ignored, except in "
        "`ragboost` and where they would change the answer. Errors are `ErrorResponse` objects. "
        "More about the engine: [the embedded engine](../engine.md).",
        "",
        "| route | method | | body | response |",
        "|---|---|---|---|---|",
    ]
    for route in ROUTES:
        body, response = (_link(models.get(route.path)) for models in (BODIES, RESPONSES))
        if route.path == "/kv_event_sources":
            response = f"object of {response}"
        method = "POST" if "POST" in (route.methods or ()) else "GET"
        about = _text(route.endpoint.__doc__ or "")
        lines.append(f"| `{route.path}` | {method} | {about} | {body} | {response} |")
    for name, schema in sorted(schemas().items()):
        lines += ["", f"## {name}", "", schema.get("description", ""), ""]
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        for field, info in schema["properties"].items():
            default = f"`{json.dumps(info['default'])}`" if "default" in info else ""
            default = "required" if field in schema.get("required", ()) else default
            about = _text(info.get("description", ""))
            lines.append(f"| `{field}` | {_schema_type(info)} | {default} | {about} |")
    return "\n".join(lines) + "\n"


def _link(model: type[BaseModel] | None) -> str:
    return "" if model is None else _schema_type({"$ref": f"/{model.__name__}"})


def _schema_type(schema: dict[str, Any]) -> str:
    """Write a JSON schema as a type, with links to the sections of objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_schema_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{choice}`" for choice in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_schema_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_schema_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any" if schema else ""))


def commands_page() -> str:
    """Return the page of all commands with the help that Typer writes."""
    command = [sys.executable, "-m", "typer", "ragboost.cli", "utils", "docs", "--name", "ragboost"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = done.stdout.replace("# `ragboost`", "# Command line", 1).rstrip() + "\n"
    # Typer puts two empty lines before text that it must not wrap: examples.
    return re.sub(
        r"\n\n\n((?:.+\n)+)", lambda found: f"\n\n```\n{html.unescape(found[1])}```\n", text
    )


def _text(text: str) -> str:
    """Return text as one line for a table cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def pages() -> dict[str, str]:
    """Return the text of every generated page by file name."""
    return {
        "compatibility.md": _HEADER + compatibility_page(),
        "settings.md": _HEADER + settings_page(),
        "metrics.md": _HEADER + metrics_page(),
        "http.md": _HEADER + http_page(),
        "engine-http.md": _HEADER + engine_http_page(),
        "commands.md": _HEADER + commands_page(),
    }


def main() -> None:
    """Write the pages, or with `--check` exit with 1 if one is stale."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, report stale pages")
    is_check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = PAGES / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.exit(f"{', '.join(stale)}: out of date; run `make reference`")


if __name__ == "__main__":
    main()
