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
    words = tensor.detach()
    if words.numel() <= WORDS:
        words = words.reshape(-1)
    elif words.is_contiguous():
        words = words.view(-1)[_places(words.numel(), words.device)]
    else:  # the same elements whatever the layout, and no copy of it all for a few of its words
        words = words[_coordinates(words.shape, words.device)]
    return words.contiguous().view(_BITS[words.element_size()]).clone()


@lru_cache(maxsize=4096)
def _places(numel: int, device: torch.device) -> Tensor:
    return torch.arange(WORDS, device=device) * (numel - 1) // (WORDS - 1)


@lru_cache(maxsize=4096)
def _coordinates(shape: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    return torch.unravel_index(_places(shape.numel(), device), shape)
