"""Settings for hosted APIs: prices of models."""

from pydantic import Field

from ragboost.config.section import Section


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
