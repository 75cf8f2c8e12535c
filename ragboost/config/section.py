"""The base classes of the settings' sections."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class ChangedFieldsRepr:
    """A `repr` with only the fields that differ from their defaults."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        fields: Mapping[str, FieldInfo] = type(self).model_fields  # type: ignore[attr-defined]
        for name, info in fields.items():
            if (value := getattr(self, name)) != info.default:
                yield name, value


class Section(ChangedFieldsRepr, BaseModel):
    """Base class of all sections: frozen, rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
