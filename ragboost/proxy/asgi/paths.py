"""Decide which paths of the backend clients may use.

An engine has one key for inference and for administration: whoever may send a prompt through the
proxy would also put the engine to sleep, load weights or flush its cache.
"""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from ragboost.errors import RequestError
from ragboost.requests.wires.registry import WIRES

# What the SDKs of OpenAI and Anthropic and the clients of vLLM and SGLang use for inference. Not
# all of /v1: it has /v1/load_lora_adapter, for example.
_V1 = (
    "assistants audio batches chat classify complete completions conversations detokenize "
    "embeddings files images messages models moderations pooling realtime rerank responses score "
    "threads tokenize uploads vector_stores videos"
)
_INFERENCE = (
    *(f"/v1/{name}" for name in _V1.split()),
    "/v2/embed",
    "/v2/rerank",
    "/classify",
    "/detokenize",
    "/encode",
    "/generate",
    "/get_model_info",
    "/health_generate",
    "/inference/v1/generate",
    "/model_info",
    "/ping",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/docs",
    "/openapi.json",
)
_COMPLETIONS = frozenset(wire.path for wire in WIRES)
_SLASHES = re.compile("/+")
_MAX = 16  # segments of an allowed path


class ForbiddenPathError(RequestError):
    status = 403


class ForwardedPaths:
    """The paths that are forwarded: those for inference, and others; `/` for all."""

    def __init__(self, others: Sequence[str]) -> None:
        self._has_all = "/" in others
        self._allowed = frozenset([*_INFERENCE, *(path.rstrip("/") for path in others)])

    def check(self, path: str) -> None:
        """Check a path as the client encoded it; the backend must not understand another one."""
        decoded = unquote(path)
        single = _SLASHES.sub("/", decoded)
        # A backend that does not mind doubled slashes would not read a completion's documents.
        if self._has_all and (single == decoded or single.removesuffix("/") not in _COMPLETIONS):
            return
        segments = single.removesuffix("/").split("/")
        prefixes = ("/".join(segments[:end]) for end in range(2, min(len(segments), _MAX) + 1))
        is_allowed = self._has_all or any(prefix in self._allowed for prefix in prefixes)
        if is_allowed and _is_plain(single, segments):
            if single == decoded:
                return
            raise ForbiddenPathError(
                "the path has two slashes in a row (//): remove the slash at the end of the "
                "client's base URL"
            )
        first = "/".join(segments[:2])
        if not is_allowed and (first == "/sessions" or "/v1" + first in self._allowed):
            raise ForbiddenPathError("the client's base URL lacks /v1 at its end")
        if segments[1:3] == ["v1", "v1"]:
            raise ForbiddenPathError("the client's base URL has /v1 twice")
        raise ForbiddenPathError(
            "this path is not forwarded to the backend; the operator of RAGBoost can allow further "
            "ones with proxy.forwarded_paths"
        )


def _is_plain(decoded: str, segments: Sequence[str]) -> bool:
    """Return True for a path that no server on the way resolves to another one."""
    if not decoded.isprintable() or any(mark in decoded for mark in ("%", "\\", "\ufffd")):
        return False
    return all(s.partition(";")[0].strip() not in ("", ".", "..") for s in segments[1:])
