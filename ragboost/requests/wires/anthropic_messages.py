"""Anthropic's messages."""

from ragboost.requests.wires.wire import UsageFields, WireApi

ANTHROPIC_MESSAGES = WireApi(
    endpoint="messages",
    path="/v1/messages",
    summary="Boost and forward an Anthropic message",
    messages=("messages",),
    rewritten=("messages",),
    instructions=("system",),
    tools=("tools",),
    message_options=("thinking", "tool_choice"),
    text_types=("text",),
    image_types=("image",),
    result_blocks={"tool_result": "content"},
    usage_holders=("message",),
    counts=(
        UsageFields(
            prompt=("input_tokens",),
            cached=("cache_read_input_tokens",),
            written=("cache_creation_input_tokens", "cache_creation.*"),
            is_additive=True,
        ),
    ),
    last_events=("message_delta",),
)
