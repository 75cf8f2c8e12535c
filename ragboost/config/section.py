"""What all sections of the settings have in common."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Changed:
    """Shows only the fields that differ from their defaults, as in the constructor's call."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        fields: Mapping[str, FieldInfo] = type(self).model_fields  # type: ignore[attr-defined]
        for name, info in fields.items():
            if (value := getattr(self, name)) != info.default:
                yield name, value


class Section(Changed, BaseModel):
    """Base of all sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
