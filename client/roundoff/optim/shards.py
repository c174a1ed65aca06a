"""Sharded parameters: a rank steps the part of a `DTensor` that it holds, which is a block of the whole."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from roundoff.kernels import Noise

_DTENSOR = "torch.distributed.tensor"
"""Where DTensor lives. Importing it takes a second, and without it there are no shards."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    module = sys.modules.get(_DTENSOR)
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, the same memory; the tensor itself unless it is sharded."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def shared_like(part: Tensor, whole: Tensor) -> Tensor:
    """A part, sharded as `whole` is; the part itself if that is not sharded."""
    if not is_sharded(whole):
        return part
    dtensor: Any = whole
    made: Tensor = sys.modules[_DTENSOR].DTensor.from_local(
        part,
        dtensor.device_mesh,
        dtensor.placements,
        run_check=False,
        shape=dtensor.shape,
        stride=dtensor.stride(),
    )
    return made


def noise_for(param: Tensor, key: int) -> Noise:
    """Random bits for the part held here, the same that the elements have in the whole tensor."""
    if not is_sharded(param):
        return Noise(key)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    dtensor: Any = param
    shape, offset = compute_local_shape_and_global_offset(
        dtensor.shape, dtensor.device_mesh, dtensor.placements
    )
    strides = [1]
    for size in reversed(dtensor.shape[1:]):
        strides.insert(0, strides[0] * size)
    if tuple(shape[1:]) == tuple(dtensor.shape[1:]):
        first = sum(start * stride for start, stride in zip(offset, strides, strict=False))
        return Noise(key, first)
    index = torch.zeros((), dtype=torch.int64, device=local(param).device)
    for size, start, stride in zip(shape, offset, strides, strict=True):
        steps = (torch.arange(size, device=index.device) + start) * stride
        index = index.unsqueeze(-1) + steps
    return Noise(key, index=index.reshape(-1))
