"""Which process measures a parameter: every shard its own, replicas one of them."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor
from torch.distributed import get_rank, is_available, is_initialized

from roundoff.delivery.launcher import find_rank
from roundoff.wire import Placement

from .shards import is_sharded


def replica_of_process() -> int:
    """This process's number in its job: of torch.distributed where that runs, else what the launcher says."""
    if is_available() and is_initialized():
        return get_rank()
    return find_rank(os.environ)[0]


def placement(param: Tensor, replica: int) -> tuple[Placement, bool]:
    """How a parameter lies over the ranks, and whether this process is the one to measure what it holds.

    A DTensor says itself which ranks hold the same part of it: the first of them measures. Of any other tensor
    `replica` is this process's number among those that hold it, and number 0 measures.
    """
    if not is_sharded(param):
        return "replicated", replica == 0
    dtensor: Any = param
    place = dtensor.device_mesh.get_coordinate() or []
    kept = list(zip(dtensor.placements, place, strict=False))
    first = bool(place) and all(at == 0 for how, at in kept if how.is_replicate())
    return "sharded" if any(not how.is_replicate() for how, _ in kept) else "replicated", first
