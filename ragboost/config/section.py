"""The base class of the settings and their sections."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen model that rejects unknown keys; its `repr` shows only changed fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, info in type(self).model_fields.items():
            if (value := getattr(self, name)) != info.default:
                yield name, value
