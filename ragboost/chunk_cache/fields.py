"""Validate JSON objects of a request; an invalid field raises `RequestError`, which names it."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ragboost.errors import RequestError, show

Text = Annotated[str, Field(min_length=1)]
Ratio = Annotated[float, Field(ge=0, le=1)]


class Fields(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if field is not None}


M = TypeVar("M", bound=Fields)


def read_fields(model: type[M], value: Any, *, name: str = "") -> M:
    """Validate a JSON value; `name` is its path in the body, empty for the body itself."""
    try:
        return model.model_validate(value)
    except ValidationError as caught:
        error = caught.errors(include_url=False)[0]
    where = name
    for part in error["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    if error["type"] == "missing":
        raise RequestError(f"{where} is required", param=where)
    if error["type"] == "extra_forbidden":
        raise RequestError(
            f"{where} is unknown; known are {', '.join(model.model_fields)}", param=where
        )
    expected = "must be an object"
    if error["type"] != "model_type":
        expected = str(error.get("ctx", {}).get("error") or error["msg"])
        expected = expected.replace("Input should be", "must be")
        expected = expected.replace("a valid dictionary", "an object")
    raise RequestError(f"{where} {expected}, got {show(error['input'])}", param=where)
