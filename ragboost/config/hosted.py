"""Settings for hosted APIs: prices of models, and the order of what has none."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from ragboost.config.section import Section
from ragboost.wires.registry import ANY

# Lists in which the order is the text.
_ORDERED = (
    *(*ANY.messages, *ANY.prompts, *ANY.instructions, *ANY.content, *ANY.ordered),
    *(*ANY.result_items.values(), "documents"),
)
_PATH = re.compile(r"[\w-]+(\[\])?(\.[\w-]+(\[\])?)*")


def _check_list(path: str) -> str:
    last = path.rpartition(".")[2]
    if _PATH.fullmatch(path) is None or last.endswith("[]"):
        raise ValueError("must be the path of a list, such as tools[].function.parameters.required")
    if last in _ORDERED:
        raise ValueError(f"must not be {last}: its order is part of the text")
    return path


class PriceSettings(Section):
    """Prices of a model's prompt tokens; the multipliers are Anthropic's unless changed."""

    model: str = Field(
        min_length=1,
        description="Name of the model, or its beginning; the longest that fits is used.",
    )
    input: float = Field(
        gt=0, allow_inf_nan=False, description="Price of a million prompt tokens, in any currency."
    )
    cached_read: float = Field(
        0.1, ge=0, le=1, description="Price of a token read from the cache, as a share of `input`."
    )
    write: float = Field(
        1.25,
        ge=1,
        allow_inf_nan=False,
        description="Price of a token written to the cache, as a multiple of `input`; 1: no extra.",
    )
    write_1h: float = Field(
        2.0,
        ge=1,
        allow_inf_nan=False,
        description="Price of a token written for an hour, as a multiple of `input`.",
    )
    min_tokens: int = Field(
        1024, ge=0, description="Shortest prefix that the API caches; shorter ones get no mark."
    )


class StableSettings(Section):
    """One order for what has none, so that equal requests have equal prefixes."""

    enabled: bool = Field(
        False,
        description="Sort tools by name, and the keys of their JSON and of the inputs of earlier "
        "tool calls. Texts are never changed; the model sees the tools in another order.",
    )
    lists: tuple[Annotated[str, AfterValidator(_check_list)], ...] = Field(
        (),
        description="Further lists to sort with `enabled`, as paths in the body with [] for each "
        "element: tools[].function.parameters.required.",
    )
