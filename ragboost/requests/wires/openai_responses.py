"""OpenAI's Responses."""

from ragboost.requests.wires.wire import UsageFields, WireApi

OPENAI_RESPONSES = WireApi(
    endpoint="responses",
    path="/v1/responses",
    summary="Boost and forward a response of the Responses API",
    messages=("input",),
    prompts=("input",),
    instructions=("instructions",),
    tools=("tools",),
    head_options=("reasoning",),
    stored=("conversation", "previous_response_id"),
    text_types=("input_text",),
    image_types=("input_image",),
    result_text_types=("output_text",),
    result_items={"function_call_output": "output"},
    opaque_items={"custom_tool_call_output": "output"},
    search_items={"file_search_call": "results"},
    usage_holders=("response",),
    counts=(
        UsageFields(
            prompt=("input_tokens",),
            cached=("input_tokens_details.cached_tokens",),
            written=(
                "input_tokens_details.created_cache_tokens",
                "input_tokens_details.cache_write_tokens",
                "input_tokens_details.cache_creation_tokens",
            ),
        ),
    ),
    last_events=("response.completed", "response.incomplete"),
)
