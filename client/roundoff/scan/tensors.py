"""A tensor as it lies in a file, and how to read it without holding it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 22
"""Bytes read at a time: a file of any size is scanned in little memory."""


class CheckpointError(ValueError):
    """A file that is no checkpoint, is damaged, or cannot be read safely; says what to do."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One dense tensor in a file: `numel` elements of `dtype` from byte `offset` on, in the order of its strides.

    `dtype` is None for a storage format that torch has no dtype for; its elements are `itemsize` bytes all the same.
    """

    name: str
    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    label: str
    itemsize: int
    strides: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.numel * self.itemsize

    def chunks(self) -> Iterator[Tensor]:
        """Its elements as flat uint8 tensors of at most CHUNK_BYTES. Raises CheckpointError if the file ends before."""
        buffer = bytearray(min(CHUNK_BYTES, self.nbytes))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            left = self.nbytes
            while left:
                view = memoryview(buffer)[: min(left, len(buffer))]
                filled = 0
                while filled < len(view):
                    got = file.readinto(view[filled:])
                    if not got:
                        raise CheckpointError(f"{self.path} ends in the middle of {self.name}: it is cut off")
                    filled += got
                yield torch.frombuffer(view, dtype=torch.uint8)
                left -= len(view)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of one or more files by name, and the plain numbers that were saved beside them."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are not read, and why."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
