"""Chunk reuse in SGLang's API server: a middleware that the plug-in adds to its app."""

import json
from collections.abc import Mapping
from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.chunk_cache.http.answer_scores import ScoredTokens, TokenScores
from ragboost.chunk_cache.http.asgi import Scope
from ragboost.chunk_cache.http.middleware import ExactError, ReuseMiddleware, StartedEngine
from ragboost.chunk_cache.sglang.flags import instance, read_settings

_PARAMS = "custom_params"
_TOKENIZE_TEXT = ("model", "prompt")
_NOT_RENDERED = ("stream", "stream_options", "n", _PARAMS)


class SGLangScorer:
    def request(self, asked: ScoredTokens) -> tuple[str, Mapping[str, Any]]:
        names = ("extra_key", "cache_salt")
        return "/generate", {
            **{name: asked.request[name] for name in names if name in asked.request},
            "input_ids": asked.tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": len(asked.tokens) - asked.num_scored - 1,
            "top_logprobs_num": 1,
        }

    def read(self, answer: Mapping[str, Any], asked: ScoredTokens) -> TokenScores:
        meta = answer["meta_info"]
        given = [row[0] for row in meta["input_token_logprobs"][-asked.num_scored :]]
        best = [row[0][0] for row in meta["input_top_logprobs"][-asked.num_scored :]]
        is_end = meta["finish_reason"]["type"] == "stop"
        return TokenScores(given, best, is_end, meta["prompt_tokens"] - meta["cached_tokens"])


class SGLangFront(ReuseMiddleware):
    """Middleware of SGLang's API server. Its scheduler has no answer "ask again" for a request
    whose chunks are on their way, so requests wait here."""

    loads_first = True
    params_field = _PARAMS
    scorer = SGLangScorer()

    def engine(self, scope: Scope) -> StartedEngine | str:
        args = getattr(scope["app"], "server_args", None)
        if args is None:
            return "SGLang was started with several tokenizer workers"
        ranks, name = args.tp_size, instance(args.port)
        return StartedEngine(read_settings(args), name, ranks, takes_commands=ranks == 1)

    def namespace(self, fields: Mapping[str, Any]) -> list[str | None]:
        names = (fields.get(name) for name in ("extra_key", "cache_salt"))
        return [name if isinstance(name, str) else None for name in names]

    def prompt_body(self, fields: Mapping[str, Any], *, is_chat: bool) -> Mapping[str, Any]:
        if is_chat:  # the template may depend on any field
            return {name: fields[name] for name in fields if name not in _NOT_RENDERED}
        return {name: fields[name] for name in _TOKENIZE_TEXT if name in fields}

    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        params = fields.get(_PARAMS) or {}
        if not isinstance(params, dict):
            raise ExactError("other_custom_params")
        # SGLang takes no nested values.
        return {**fields, _PARAMS: {**params, PARAMS_KEY: json.dumps(plan)}}
