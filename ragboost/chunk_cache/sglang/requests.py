"""The uses of SGLang's requests, which depend on its version.

Does not import SGLang. Does not know chunks.
"""

from typing import Any


def request_refusal(req: Any) -> str | None:
    """Return why reuse is impossible for a request; None if it is possible."""
    refused = {
        "multimodal": req.multimodal_inputs is not None,
        "prompt_embeddings": req.input_embeds is not None
        or req.positional_embed_overrides is not None,
        "session": req.session is not None,
        "prompt_logprobs": req.return_logprob
        and 0 <= req.logprob_start_len < len(req.origin_input_ids) - 1,
    }
    return next((reason for reason, is_refused in refused.items() if is_refused), None)
