"""A few fixed words of a tensor: enough to notice that it changed, cheap enough for every step."""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = 32
"""Words sampled per tensor, evenly spread."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sampled_words(tensor: Tensor) -> Tensor:
    """At most `WORDS` words of a tensor as integers of its width, so that NaN equals itself; a copy, 1-d."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > WORDS:
        flat = flat[:: flat.numel() // WORDS][:WORDS]
    return flat.contiguous().view(_BITS[flat.element_size()]).clone()
