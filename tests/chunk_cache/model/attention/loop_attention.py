"""Reference attention: one row, one head and one key at a time, in float64."""

import math

import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs


class LoopAttention:
    """The attention backend that the others are tested against."""

    def supports(self, inputs: AttentionInputs) -> bool:
        return True

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        query, key, value = (t[0].double() for t in (inputs.query, inputs.key, inputs.value))
        heads, rows = query.shape[:2]
        group = heads // key.shape[0]
        out = torch.zeros(heads, rows, value.shape[-1], dtype=torch.float64, device=query.device)
        for head in range(heads):
            for row in range(rows):
                scores: dict[int, float] = {}
                for slot in range(inputs.num_keys):
                    if self._sees(inputs, int(inputs.positions[row]), slot):
                        raw = float(query[head, row] @ key[head // group, slot]) * inputs.scaling
                        if inputs.softcap is not None:
                            raw = inputs.softcap * math.tanh(raw / inputs.softcap)
                        scores[slot] = raw
                sink = None if inputs.sinks is None else float(inputs.sinks[head])
                top = max([*scores.values(), *([] if sink is None else [sink])])
                total = sum(math.exp(s - top) for s in scores.values())
                total += 0.0 if sink is None else math.exp(sink - top)
                for slot, score in scores.items():
                    out[head, row] += math.exp(score - top) / total * value[head // group, slot]
        return out[None].to(inputs.query.dtype)

    def _sees(self, inputs: AttentionInputs, position: int, slot: int) -> bool:
        if slot > position or (inputs.window is not None and slot <= position - inputs.window):
            return False
        return inputs.visible is None or bool(inputs.visible[slot])
