"""Numbers on their way from a GPU: one asynchronous copy into pinned memory, which the training thread starts only.

The copy is made in the order of the stream that the caller is on, so it is right whatever that stream is; the collector
waits for the copy alone, and for nothing that came after it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from .sample import Numbers, Sample

if TYPE_CHECKING:
    import torch


class Arriving:
    """A copy of a CUDA tensor that may still be under way. Reading it waits for the copy."""

    def __init__(self, numbers: torch.Tensor) -> None:
        import torch

        with torch.cuda.device(numbers.device):
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers.detach(), non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record()

    def tolist(self) -> list[list[float]]:
        """The numbers of a matrix, (rows, columns)."""
        self._there.synchronize()
        rows: list[list[float]] = self._host.tolist()
        return rows

    def item(self) -> float:
        """The number of a tensor of one element."""
        self._there.synchronize()
        return float(self._host.item())


def departed(sample: Sample) -> Sample:
    """The sample with its copies to the host begun; as it is where there is nothing on a GPU."""
    if not getattr(sample.sums, "is_cuda", False):
        return sample
    headroom = None if sample.headroom is None else _copy(sample.headroom)
    return replace(sample, sums=_copy(sample.sums), headroom=headroom)


def copied(one: torch.Tensor) -> torch.Tensor | Arriving:
    """A copy of a tensor of one element on a device, to be read later: the caller may change its own meanwhile."""
    if getattr(one, "is_cuda", False):
        with suppress(Exception):  # no pinned memory is left: a copy on the device will do
            return Arriving(one)
    return one.detach().clone()


def _copy(numbers: Numbers) -> Numbers:
    try:
        return Arriving(numbers)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - no pinned memory is left: the collector reads them from the GPU
        return numbers
