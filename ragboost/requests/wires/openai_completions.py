"""OpenAI's text completions, and SGLang's `/generate` as far as its usage is concerned."""

from ragboost.requests.wires.wire import WireApi

OPENAI_COMPLETIONS = WireApi(
    endpoint="completions",
    path="/v1/completions",
    summary="Boost and forward a text completion",
    has_stream_options=True,
    prompts=("prompt",),
    rewritten=("prompt",),
    usage=("usage", "meta_info"),
)
