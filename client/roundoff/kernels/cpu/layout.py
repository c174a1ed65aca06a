"""Whether tensors still lie in memory as they did: type, dtype, device, shape and strides, but not where.

PyTorch's compiler looks at its inputs before every call, in C; its guards cost a tenth of the same in Python. They
are not public, so they are used only where they are found to see everything that they must.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor


class Layout(Protocol):
    """What some tensors were like. Keeps none of them alive."""

    def check(self, *tensors: object) -> bool:
        """Whether these, as many, are like them, one by one; what is no tensor is not."""


def layout_of(*tensors: Tensor) -> Layout:
    """How tensors lie now."""
    return _guards(*tensors) if guards_see_all() else PlainLayout(*tensors)


class PlainLayout:
    """The same without PyTorch's guards."""

    def __init__(self, *tensors: Tensor) -> None:
        self._known = [_look(tensor) for tensor in tensors]

    def check(self, *tensors: object) -> bool:
        """See `Layout`."""
        return all(
            type(tensor) is known[0] and isinstance(tensor, Tensor) and _look(tensor) == known
            for tensor, known in zip(tensors, self._known, strict=True)
        )


def _look(tensor: Tensor) -> tuple[object, ...]:
    if tensor.layout is not torch.strided:
        return type(tensor), tensor.layout
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad


def _guards(*tensors: Tensor) -> Layout:
    from torch._C._dynamo import guards

    made: Layout = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return made


@functools.cache
def guards_see_all() -> bool:
    """Whether PyTorch has its guards here, and they tell apart all that is looked at."""
    made = functools.partial(torch.zeros, 2, 2, device="cpu", dtype=torch.float32)
    known, other = made(), made()
    unlike: list[Any] = [
        None,
        1.0,
        torch.nn.Parameter(made(), requires_grad=False),
        made(dtype=torch.int32),
        made(dtype=torch.bfloat16),
        made(device="meta"),
        made().view(4),
        torch.zeros(2, 3, device="cpu")[:, :2],
        made().t(),
        made().to_sparse(),
    ]
    try:
        guards = _guards(known, other)
        alike = guards.check(known, other) and guards.check(made(), made())
        return alike and not any(guards.check(known, one) or guards.check(one, known) for one in unlike)
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return False
