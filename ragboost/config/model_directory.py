"""Find the directory of a model by its name: a directory, a fetched model, or one of the hub."""

import logging
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ragboost.errors import ConfigError, import_extra

logger = logging.getLogger(__name__)

FETCHED_MODELS = ("smollm2-135m", "qwen-0.5b", "qwen-1.5b")
_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# What is taken from the hub to load a causal LM: no code, and no pickled weights.
_PATTERNS = ("model*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ragboost" / "models"


def find_model(model: Path, *, only: str | None = None) -> Path:
    """Return the directory of a model: that of a fetched one for its name, that in the hub's cache
    for a hub name, else the path itself.

    Args:
        only: the one file of the model that is needed; None: all that a causal LM is loaded from.

    Raises:
        ConfigError: neither the hub nor its cache has the model.
    """
    name = str(model)
    if model.exists():
        return model
    if name in FETCHED_MODELS:
        directory = cache_directory() / name
        if not (directory / _CONFIG).is_file():
            raise ConfigError(
                f"the model {name} has not been fetched: run `python -m scripts.fetch_model "
                f"{name}` in a clone of RAGBoost"
            )
        return directory
    return _find_on_hub(name, only) if _HUB_NAME.fullmatch(name) else model


def check_model(directory: Path, *, option: str) -> None:
    """Raise `ConfigError` unless this is the directory of a model; `option` named it."""
    if not directory.exists():
        raise ConfigError(
            f"{option}: {directory} is no directory, no name on the hub such as Qwen/Qwen3-0.6B, "
            f"and no model that can be fetched ({', '.join(FETCHED_MODELS)})"
        )
    if not (directory / _CONFIG).is_file():
        raise ConfigError(f"{option}: {directory} is not a model directory (it has no {_CONFIG})")


def model_name(directory: Path) -> str:
    """Return the name of a model: on the hub if the directory is of its cache, else its own."""
    path = directory.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name


def _find_on_hub(name: str, only: str | None) -> Path:
    """Return the directory of a model in the hub's cache, filled from the hub if that answers."""
    hub: Any = import_extra("huggingface_hub", extra="engine")
    reason = ""
    try:
        _download(hub, name, only)
    except ConfigError as error:
        reason = str(error)
    try:
        file = hub.try_to_load_from_cache(name, only or _CONFIG)
    except ValueError:  # no name that the hub allows
        file = None
    if isinstance(file, str):
        directory = Path(file).parent
        if only or any((directory / weights).is_file() for weights in _WEIGHTS):
            if reason:
                logger.info("the cached files of %s are used: %s", name, reason)
            return directory
        reason = reason or f"it has no {_WEIGHTS[0]}"
    raise ConfigError(
        f"{name} is no directory, and {hub.constants.ENDPOINT} does not give a model of this name "
        f"({reason}): check the name and, if the model is restricted, `hf auth login`; or copy the "
        "model and name its directory"
    )


def _download(hub: Any, name: str, only: str | None) -> None:
    """Download what the hub's cache lacks. The file that makes a snapshot the current one is last,
    so that an interrupted download leaves the former one in use. Raises `ConfigError`."""
    last = only or _CONFIG
    try:
        # Asked first, since this request has a timeout and no retries.
        found = hub.HfApi().model_info(name, timeout=hub.constants.HF_HUB_ETAG_TIMEOUT)
        for file in [sibling.rfilename for sibling in found.siblings or ()]:
            is_wanted = only is None and any(fnmatchcase(file, pattern) for pattern in _PATTERNS)
            if is_wanted and "/" not in file and file != last:
                hub.hf_hub_download(name, file, revision=found.sha)
        hub.hf_hub_download(name, last)
    except Exception as error:  # of the disk, of HTTP and its client, or of what is no hub
        sentence = next(iter(str(error).splitlines()), "").rstrip(".")
        raise ConfigError(sentence or type(error).__name__) from error
