"""The part of a sharded tensor that a process holds."""

from __future__ import annotations

import sys

from torch import Tensor

DTENSOR = "torch.distributed.tensor"
"""Where DTensor lives. Importing it takes a second, and without it there are no shards."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    module = sys.modules.get(DTENSOR)
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, the same memory; the tensor itself unless it is sharded."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part
