"""Read the RoPE frequencies out of an engine's table of cosines and sines.

The table has the engine's own scaling of the frequencies in it (YaRN, Llama 3, ...), whatever class
computed it.
"""

import math

import torch


def read_frequencies(table: torch.Tensor) -> torch.Tensor:
    """Return radians per position, (pairs,) float64.

    The angle at position 1 is below half a turn, and gives a frequency with the rounding error of
    the table. At each doubled position the full turns follow from the frequency so far, so that the
    error is halved every time.

    Args:
        table: cosines and sines of each position, (positions, 2 * pairs), of any scale.
    """
    cos, sin = table.double().cpu().chunk(2, dim=-1)
    position = 1
    frequencies = torch.atan2(sin[1], cos[1])
    while 2 * position < len(table):
        position *= 2
        angles = torch.atan2(sin[position], cos[position])
        turns = ((frequencies * position - angles) / (2 * math.pi)).round()
        frequencies = (angles + 2 * math.pi * turns) / position
    return frequencies
