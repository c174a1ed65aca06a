"""A few fixed words of a tensor: enough to notice that it changed, cheap enough for every step."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

WORDS = 32
"""Words sampled per tensor, evenly spread from the first to the last."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sampled_words(tensor: Tensor) -> Tensor:
    """At most `WORDS` words of a tensor as integers of its width, so that NaN equals itself; a copy, 1-d."""
    detached = tensor.detach()
    # In the order of memory, so that a transposed tensor is not copied for a few of its words.
    strides = detached.stride()
    order = sorted(range(detached.dim()), key=lambda d: -strides[d])
    flat = detached.permute(order).reshape(-1)
    if flat.numel() > WORDS:
        flat = flat[_places(flat.numel(), flat.device)]
    return flat.contiguous().view(_BITS[flat.element_size()]).clone()


@lru_cache(maxsize=4096)
def _places(numel: int, device: torch.device) -> Tensor:
    return torch.arange(WORDS, device=device) * (numel - 1) // (WORDS - 1)
