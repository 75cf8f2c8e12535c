"""Chunk reuse in vLLM's API server: `--middleware ragboost.chunk_cache.vllm.front.Front`."""

from collections.abc import Mapping
from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.answer_scores import ScoredTokens, TokenScores
from ragboost.chunk_cache.http.asgi import Scope
from ragboost.chunk_cache.http.middleware import (
    COMPLETIONS,
    ExactError,
    ReuseMiddleware,
    StartedEngine,
)
from ragboost.chunk_cache.vllm.flags import CONNECTOR_MODULE

_PARAMS = "kv_transfer_params"
_TOKENIZE_TEXT = ("model", "prompt", "add_special_tokens")
_TOKENIZE_CHAT = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
)


class VllmScorer:
    def request(self, asked: ScoredTokens) -> tuple[str, Mapping[str, Any]]:
        names = ("model", "cache_salt")
        kept = {name: asked.request[name] for name in names if name in asked.request}
        greedy = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
        return COMPLETIONS, {**kept, **greedy, "prompt": asked.tokens}

    def read(self, answer: Mapping[str, Any], asked: ScoredTokens) -> TokenScores:
        choice, usage = answer["choices"][0], answer["usage"]
        given, best = [], []
        rows = choice["prompt_logprobs"][-asked.num_scored :]
        for token, row in zip(asked.tokens[-asked.num_scored :], rows, strict=True):
            given.append(row[str(token)]["logprob"])
            best.append(max([each["logprob"] for each in row.values()]))
        # With log-probabilities of the prompt, vLLM reads no prefix cache.
        is_end = choice["finish_reason"] == "stop"
        return TokenScores(given, best, is_end, usage["prompt_tokens"])


class Front(ReuseMiddleware):
    params_field = _PARAMS
    scorer = VllmScorer()

    def engine(self, scope: Scope) -> StartedEngine | str:
        config = scope["app"].state.vllm_config
        transfer = config.kv_transfer_config
        if transfer is None or transfer.kv_connector_module_path != CONNECTOR_MODULE:
            return f"vLLM was started without {CONNECTOR_MODULE}"
        settings = EngineChunkSettings.read(transfer.kv_connector_extra_config)
        # The scheduler takes announcements for all ranks, and lists what they store.
        is_alone = config.parallel_config.tensor_parallel_size == 1
        return StartedEngine(settings, config.instance_id, takes_commands=is_alone)

    def prompt_body(self, fields: Mapping[str, Any], *, is_chat: bool) -> Mapping[str, Any]:
        names = _TOKENIZE_CHAT if is_chat else _TOKENIZE_TEXT
        return {name: fields[name] for name in names if name in fields}

    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        if fields.get(_PARAMS):
            raise ExactError("other_kv_transfer")
        return {**fields, _PARAMS: {PARAMS_KEY: plan}}
