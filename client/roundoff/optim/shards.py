"""Sharded parameters: a rank steps the part of a `DTensor` that it holds, which is a block of the whole."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from roundoff.kernels import Noise
from roundoff.watch.shards import DTENSOR, is_sharded as is_sharded, local as local


def shared_like(part: Tensor, whole: Tensor) -> Tensor:
    """A part, sharded as `whole` is; the part itself if that is not sharded."""
    if not is_sharded(whole):
        return part
    dtensor: Any = whole
    made: Tensor = sys.modules[DTENSOR].DTensor.from_local(
        part,
        dtensor.device_mesh,
        dtensor.placements,
        run_check=False,
        shape=dtensor.shape,
        stride=dtensor.stride(),
    )
    return made


def part_of(value: Tensor, param: Tensor) -> Tensor:
    """What belongs beside the part of `param` held here, out of a tensor of its whole shape, sharded or not.

    A gradient may lie otherwise than its parameter: what ranks still have to add up, say.
    """
    source: Any = value
    target: Any = param
    if not is_sharded(param):
        return source.full_tensor() if is_sharded(value) else value
    if not is_sharded(value):
        return local(_distributed(value, target.device_mesh, target.placements))
    if source.device_mesh != target.device_mesh:
        return local(_distributed(source.full_tensor(), target.device_mesh, target.placements))
    return local(
        source
        if source.placements == target.placements
        else source.redistribute(placements=target.placements)
    )


def noise_for(param: Tensor, key: int) -> Noise:
    """Random bits for the part held here, the same that the elements have in the whole tensor."""
    if not is_sharded(param):
        return Noise(key)
    dtensor: Any = param
    layout = tuple(dtensor.shape), dtensor.device_mesh, dtensor.placements
    first = _first(*layout)
    if first is not None:
        return Noise(key, first)
    return Noise(key, index=_index(*layout).to(local(param).device))


@lru_cache(maxsize=4096)
def _first(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> int | None:
    """Where the part held here begins in the whole, flat, if it is one stretch of it; else None."""
    sharded = [dim for dim in range(len(shape)) if any(getattr(p, "dim", None) == dim for p in placements)]
    if any(dim > 0 for dim in sharded):
        return None
    if not sharded:
        return 0
    rows = _positions(0, shape, mesh, placements).flatten().tolist()
    if not rows:
        return 0
    return rows[0] * math.prod(shape[1:]) if rows == list(range(rows[0], rows[0] + len(rows))) else None


def _index(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> Tensor:
    """For each element held here its place in the whole, flat: int64 of one dimension."""
    index: Tensor | int = 0
    for dim in range(len(shape)):
        index = index + _positions(dim, shape, mesh, placements) * math.prod(shape[dim + 1 :])
    return torch.as_tensor(index).reshape(-1)


def _positions(dim: int, shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> Tensor:
    """The places along one dimension that are held here: int64, of size 1 along the others."""
    places = torch.arange(shape[dim]).reshape([-1 if other == dim else 1 for other in range(len(shape))])
    replicate = sys.modules[DTENSOR].Replicate()
    own = [p if getattr(p, "dim", None) == dim else replicate for p in placements]
    return local(_distributed(places, mesh, own))


def _distributed(whole: Tensor, mesh: Any, placements: Any) -> Tensor:
    """A tensor that every rank holds whole, sharded; nothing is sent."""
    made: Tensor = sys.modules[DTENSOR].distribute_tensor(whole, mesh, placements, src_data_rank=None)
    return made
