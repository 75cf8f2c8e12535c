"""The base class of the settings and their sections."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen model that rejects unknown keys; its `repr` shows only changed fields.

    Neither `repr` nor the messages of validation errors show keys and passwords.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, info in type(self).model_fields.items():
            if (value := getattr(self, name)) != info.default:
                yield name, hide_login(str(value)) if isinstance(value, str | dict) else value


def hide_login(text: str) -> str:
    """Remove user, password and query from the URL in a text, even if the URL is malformed."""
    text = re.sub(r"://.*@", "://", text, flags=re.DOTALL)
    return re.sub(r"(://[^?]*)\?.*", r"\1?...", text, flags=re.DOTALL)
