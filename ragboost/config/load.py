"""Load settings from flags, environment, `ragboost.toml` and defaults; errors name the source."""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from ragboost.config.section import Section, hide_login
from ragboost.config.settings import Settings
from ragboost.errors import ConfigError

TOML_NAME = "ragboost.toml"
ENV_PREFIX = "RAGBOOST_"
# Variables that are no settings: an option of `ragboost precompute`, and those by which Kubernetes
# tells pods of a service called `ragboost`, or `ragboost-redis`: RAGBOOST_PORT=tcp://10.0.0.1:8080.
_OTHERS = re.compile(
    r"PUBLIC_KEY=.*|([A-Z0-9]+_)*(SERVICE_(HOST|PORT)\w*=.*|PORT_\d+_\w+=.*|PORT=\w+://.*)",
    flags=re.DOTALL,
)
_SHAPES = {
    "dict_type": "must be a table",
    "extra_forbidden": "unknown setting",
    "missing": "is missing",
    "model_type": "must be a table",
    "tuple_type": "must be a list",
}


class _Environment(Settings, BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__")


def load_settings(flags: Mapping[str, Any] | None = None, *, toml: Path | None = None) -> Settings:
    """Load settings from flags, environment, TOML file and defaults, in this order of precedence.

    Flags are by dotted path, such as `{"proxy.port": 8080}`, and ignored if None. The environment
    variable of this one is `RAGBOOST_PROXY__PORT`. A ConfigError names the source of a bad value,
    and the closest key to an unknown one.
    """
    toml = toml or settings_file()
    given = {path: value for path, value in (flags or {}).items() if value is not None}
    values = _read_toml(toml)
    origin = {
        **dict.fromkeys(_paths(values), str(toml)),
        **_environ_paths(),
        **dict.fromkeys(given, "command line"),
    }
    for path, source in origin.items():
        _check_known(path, source)

    try:
        return Settings(**_merged(values, EnvSettingsSource(_Environment)(), _nested(given)))
    except ValidationError as error:
        raise ConfigError(_explain(error, origin)) from None
    except SettingsError as error:
        names = " or ".join(_variables_with(getattr(error.__cause__, "doc", None)))
        raise ConfigError(f"{names}: lists and tables must be JSON, such as '[\"a\"]'") from None


def settings_file() -> Path | None:
    path = Path(TOML_NAME)
    return path if path.exists() else None


def field_paths() -> dict[str, str]:
    """Return the description of every setting by its dotted path."""
    paths = {}
    for section, holder in Settings.model_fields.items():
        if not isinstance(holder.default, Section):
            paths[section] = holder.description or ""
            continue
        for name, info in type(holder.default).model_fields.items():
            paths[f"{section}.{name}"] = info.description or ""
    return paths


def _read_toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _paths(data: Mapping[str, Any]) -> list[str]:
    """Return the dotted paths of nested values; the name of a section that has none."""
    return [
        f"{section}.{name}" if name else section
        for section, values in data.items()
        for name in ((values if isinstance(values, dict) else None) or [""])
    ]


def _merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the values of each section; later sources override earlier ones."""
    merged: dict[str, Any] = {}
    for source in sources:
        for section, values in source.items():
            known = merged.get(section)
            if known is not None and isinstance(values, dict):
                values = {**known, **values} if isinstance(known, dict) else known
            merged[section] = values
    return merged


def _environ_paths() -> dict[str, str]:
    return {
        name.removeprefix(ENV_PREFIX).lower().replace("__", "."): name
        for name, value in os.environ.items()
        if name.startswith(ENV_PREFIX)
        and not _OTHERS.fullmatch(f"{name.removeprefix(ENV_PREFIX)}={value}")
    }


def _variables_with(value: str | None) -> list[str]:
    return [name for name in _environ_paths().values() if os.environ[name] == value]


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        section, _, name = path.partition(".")
        if name:
            tree.setdefault(section, {})[name] = value
        else:
            tree[section] = value
    return tree


def _check_known(path: str, source: str) -> None:
    known = field_paths()
    if path in known or path == "formats.delimiters" or path in Settings.model_fields:
        return
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    sections = ", ".join(Settings.model_fields)
    advice = f"; did you mean {near[0]!r}?" if near else f"; the sections are {sections}"
    raise ConfigError(f"unknown setting {path!r} (from {source}){advice}")


def _explain(error: ValidationError, origin: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        parts = [str(part) for part in problem["loc"]]
        path, section = ".".join(parts[:2]), parts[0]
        found = origin.get(path) or origin.get(section)
        source = f" (from {found})" if found else ""
        if section == "backends" or path == "formats.frames":
            path = ".".join(parts)
        # An unknown key may be a misspelt one of a secret; of a missing one the input is its table.
        hides = problem["type"] in ("extra_forbidden", "missing") or "key" in path
        given = "" if hides else f", got {hide_login(repr(problem['input']))}"
        message = _SHAPES.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {message}{given}{source}")
    return "; ".join(lines)
