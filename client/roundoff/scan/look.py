"""What is counted in one tensor, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .tensors import StoredTensor

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Counts of elements of one tensor; shares are for the reader to take.

    `ones`, `zeros` (of either sign), `nonfinite`: elements, 0 for tensors that hold no floats. `narrow`: elements
    of a float32 tensor that bfloat16 holds exactly. `same`: elements whose bits are equal in the other checkpoint,
    None where it has no such tensor or one of another shape, layout or dtype; `other` says which, then.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    numel: int
    ones: int = 0
    zeros: int = 0
    nonfinite: int = 0
    narrow: int = 0
    same: int | None = None
    other: str | None = None
    last: float | None = None
    """The value of a tensor of one element, such as a step counter."""

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype in {str(dtype).removeprefix("torch.") for dtype in FLOATS}


def look(
    tensor: StoredTensor, other: StoredTensor | None = None, *, read: Callable[[int], None] = lambda _: None
) -> TensorFacts:
    """Count in one tensor, and compare it with `other` if that can be. `read` is told of bytes as they are read.

    Raises CheckpointError where a file ends too early.
    """
    apart = None if other is None else _difference(tensor, other)
    beside = None if other is None or apart is not None else other.chunks()
    ones = zeros = nonfinite = narrow = same = 0
    last: float | None = None
    for chunk in tensor.chunks():
        words = chunk.view(INTEGERS[tensor.itemsize])
        if beside is not None:
            same += int((words == next(beside).view(words.dtype)).sum())
        if tensor.dtype in FLOATS:
            values = chunk.view(tensor.dtype)
            ones += int((words == _one(tensor.dtype)).sum())
            zeros += int((words & _rest(tensor.itemsize) == 0).sum())
            nonfinite += int((~_finite(values)).sum())
        if tensor.dtype == torch.float32:
            narrow += int((words & 0xFFFF == 0).sum())
        if tensor.numel == 1 and tensor.dtype is not None:
            last = float(chunk.view(tensor.dtype)[0])
        read(chunk.numel() * (1 if beside is None else 2))
    return TensorFacts(
        tensor.name,
        tensor.label,
        tensor.shape,
        tensor.numel,
        ones,
        zeros,
        nonfinite,
        narrow,
        same if beside is not None else None,
        apart,
        last,
    )


def _difference(tensor: StoredTensor, other: StoredTensor) -> str | None:
    if tensor.shape != other.shape:
        return f"has shape {list(other.shape)} there"
    if tensor.label != other.label:
        return f"is {other.label} there"
    return "lies in another order there" if tensor.strides != other.strides else None


def _one(dtype: torch.dtype) -> Tensor:
    return torch.ones((), dtype=dtype).view(INTEGERS[dtype.itemsize])


def _rest(itemsize: int) -> int:
    """Every bit but the sign."""
    return int((1 << (8 * itemsize - 1)) - 1)


def _finite(values: Tensor) -> Tensor:
    return torch.isfinite(values.to(torch.float32) if values.dtype.itemsize == 1 else values)
