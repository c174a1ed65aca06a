"""What single libraries need so that their steps mean the same in wider numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .clone import Path, tensor_at, tensors_in
from .recognise import INTEGERS, Second

_ECC = "::ecc"
"""What heavyball adds to the name of a word of the state for the name of its correction."""


def wide_settings(group: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Settings of a group that have to change where parameters of `dtype` are stepped in wider ones.

    PyTorch's Adafactor takes the resolution of the dtype where no eps is given, which would be that of the wider one.
    heavyball's words with corrections exist in 16 bit only.
    """
    changed: dict[str, Any] = {}
    eps = group.get("eps")
    if isinstance(eps, tuple | list) and None in eps:
        changed["eps"] = tuple(torch.finfo(dtype).eps if one is None else one for one in eps)
    changed.update({key: None for key in ("ecc", "param_ecc") if group.get(key) is not None})
    return changed


def joined(state: Mapping[Any, Any], weight: Second | None) -> dict[Path, Tensor | None]:
    """Moments that heavyball keeps as a word and its correction, as one float64 each, and no corrections."""
    replaced: dict[Path, Tensor | None] = {}
    for path, tensor in tensors_in(state):
        name = path[-1]
        if not isinstance(name, str) or not name.endswith(_ECC) or tensor.dtype not in INTEGERS:
            continue
        if weight is not None and path == weight.path:
            continue
        at = (*path[:-1], name.removesuffix(_ECC))
        word = tensor_at(state, at)
        if word is not None and word.shape == tensor.shape:
            replaced[at] = Second(path, "ulps").value(word, state)
            replaced[path] = None
    return replaced
