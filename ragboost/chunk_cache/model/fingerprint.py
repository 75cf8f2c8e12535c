"""Digest a model's configuration and every element of its weights, where they are: stored KV
belongs to the weights that computed it. One number per piece leaves a GPU."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch

_PIECE = 1 << 16  # words of eight bytes hashed at once, which fit into a processor cache
_ODD = -7046029254386353131  # 2^64 / golden ratio, as a signed word
_NAMES_OF_PLACES = ("_name_or_path", "_commit_hash", "transformers_version")


def weights_digest(config: str, parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return a digest that is equal for equal weights in equal order, whatever their path."""
    digest = hashlib.sha256(_without_places(config).encode())
    keys: dict[torch.device, torch.Tensor] = {}
    sums: list[torch.Tensor] = []
    for name, parameter in parameters:
        words = _as_words(parameter.detach())
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        if words.device not in keys:
            keys[words.device] = _position_keys(words.device)
        key = keys[words.device]
        sums.extend(_mixed_sum(piece, key[: len(piece)]) for piece in words.split(_PIECE))
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for value in sums:
        by_device.setdefault(value.device, []).append(value)
    for values in by_device.values():
        digest.update(torch.stack(values).cpu().numpy().tobytes())  # one transfer per device
    return digest.hexdigest()[:32]


def _without_places(config: str) -> str:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in _NAMES_OF_PLACES}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return json.dumps(strip(json.loads(config)), sort_keys=True)


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor as words of eight, the last one filled up with zeros."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if len(flat) % 8 or flat.storage_offset() % 8:
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).clone()
    return flat.view(torch.int64)


def _position_keys(device: torch.device) -> torch.Tensor:
    positions = torch.arange(1, _PIECE + 1, dtype=torch.int64, device=device)
    return _mix(_mix(positions)) | 1


def _mix(words: torch.Tensor) -> torch.Tensor:
    words = words * _ODD
    return words.bitwise_xor_(words >> 32)


def _mixed_sum(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    # Mixed before they are weighted: else flipped signs could cancel out modulo 2^64.
    return _mix(words ^ keys).mul_(keys).sum()
