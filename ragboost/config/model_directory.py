"""Find a model by the name under which `scripts/fetch_model.py` keeps it."""

import os
from pathlib import Path

from ragboost.errors import ConfigError

FETCHED_MODELS = ("smollm2-135m", "qwen-0.5b", "qwen-1.5b")


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ragboost" / "models"


def find_model(model: Path) -> Path:
    """Return the directory of a model: that of a fetched one for its name, else the path itself."""
    name = str(model)
    if name not in FETCHED_MODELS or model.exists():
        return model
    directory = cache_directory() / name
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"the model {name} has not been fetched: run `python -m scripts.fetch_model {name}` in "
            "a clone of RAGBoost"
        )
    return directory
