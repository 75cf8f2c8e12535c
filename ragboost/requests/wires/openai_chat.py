"""OpenAI's chat completions, as vLLM, SGLang and most providers speak them."""

from ragboost.requests.wires.wire import UsageFields, WireApi

OPENAI_CHAT = WireApi(
    endpoint="chat",
    path="/v1/chat/completions",
    summary="Boost and forward a chat completion",
    has_stream_options=True,
    messages=("messages",),
    rewritten=("messages",),
    tools=("tools", "functions"),
    head_options=("reasoning_effort", "chat_template", "chat_template_kwargs"),
    instruction_roles=("system", "developer"),
    tool_roles=("tool", "function"),
    text_types=("text",),
    image_types=("image_url",),
    ordered=("tool_calls",),
    counts=(
        UsageFields(
            prompt=("prompt_tokens",),
            cached=(
                "prompt_tokens_details.cached_tokens",
                "cached_tokens",  # Moonshot, SGLang
                "prompt_cache_hit_tokens",  # DeepSeek
            ),
            written=(
                "prompt_tokens_details.created_cache_tokens",  # vLLM
                "prompt_tokens_details.cache_write_tokens",
                "prompt_tokens_details.cache_creation_tokens",
            ),
            reused=("ragboost.reused",),
            recomputed=("ragboost.recomputed",),
        ),
    ),
)
