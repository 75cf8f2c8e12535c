"""Find plans of chunk reuse that clients put into a body, which could name another tenant."""

from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.util.jsonl import json_value


def without_plan(fields: dict[str, Any], params_field: str) -> dict[str, Any] | None:
    """Remove plans in objects of this name from a body; return None if there are none."""
    values: list[Any] = [fields]
    is_found = False
    while values:  # as deeply nested as the parser allows
        value = values.pop()
        if isinstance(value, dict):
            params = value.get(params_field)
            if isinstance(params, dict) and PARAMS_KEY in params:
                rest = {name: params[name] for name in params if name != PARAMS_KEY}
                value[params_field], is_found = rest or None, True
            value = value.values()
        values += [inner for inner in value if isinstance(inner, dict | list)]
    return fields if is_found else None


def has_plan(data: bytes, params_field: str) -> bool:
    """Return True if Python's parser, which servers use, finds a plan: it reads UTF-16, NaN."""
    fields = json_value(data)
    return isinstance(fields, dict) and without_plan(fields, params_field) is not None
