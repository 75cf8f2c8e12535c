"""The selection that `ragboost calibrate` chose, in a small file. It knows the shape of its model,
not the weights: calibrate again after tuning."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict

from ragboost.chunk_cache.fields import Fields, Ratio, read_fields
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection import MEASURED, POLICIES
from ragboost.errors import ConfigError, RequestError
from ragboost.util.jsonl import decode

VERSION = 1
MAX_BYTES = 1 << 16
_SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


def calibrated_policies() -> list[str]:
    """Return what may be chosen: no measured policies, no bounds and baselines."""
    without = MEASURED | {"full", "reuse"}
    return [name for name in POLICIES if name not in without]


def _check_policy(name: str) -> str:
    if name not in calibrated_policies():
        raise ValueError(f"must be one of {', '.join(calibrated_policies())}")
    return name


class Calibration(Fields):
    model_config = ConfigDict(extra="ignore")

    shape: str  # of the model, see `shape_digest`
    policy: Annotated[str, AfterValidator(_check_policy)]
    ratio: Ratio

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Return what a file says. Raises `ConfigError`."""
        try:
            if not path.is_file():
                raise ConfigError(f"the calibration {path} is not a file")
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
            if len(raw) > MAX_BYTES:
                raise ConfigError(f"the calibration {path} has more than {MAX_BYTES:,} bytes")
            fields = decode(raw)
        except OSError as error:
            raise ConfigError(f"cannot read the calibration {path}: {error.strerror}") from None
        except RequestError as error:
            raise ConfigError(f"the calibration {path} is {error}") from None
        version = fields.get("version") if isinstance(fields, dict) else None
        if version != VERSION:
            raise ConfigError(
                f"{path} is not a calibration of this version ({VERSION}): write it again with "
                "`ragboost calibrate`"
            )
        try:
            return read_fields(cls, fields)
        except RequestError as error:
            raise ConfigError(f"the calibration {path}: {error}") from None

    def write(self, path: Path, *, expected: Mapping[str, Any]) -> None:
        fields = {"version": VERSION, **self.model_dump(), "expected": expected}
        written = path.with_name(f"{path.name}.writing")
        written.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        written.replace(path)

    def check(self, model: ReusableModel) -> None:
        """Raise `ConfigError` if a model is not the one that was calibrated."""
        if shape_digest(model) != self.shape:
            raise ConfigError(
                f"the calibration was made for another model than {model.name} of this engine: "
                "run `ragboost calibrate` with this one"
            )


def shape_digest(model: ReusableModel) -> str:
    config = json.loads(model.config_text())
    text = config.get("text_config") or config
    shape = json.dumps([text.get(name) for name in _SHAPE])
    return hashlib.sha256(shape.encode()).hexdigest()[:32]
