"""Numbers on their way from a GPU: one asynchronous copy into pinned memory, which the training thread starts only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .sample import Numbers, Sample

if TYPE_CHECKING:
    import torch


class _Arriving:
    """A copy that may still be under way; `tolist` waits for it, and for nothing that came after it."""

    def __init__(self, numbers: torch.Tensor) -> None:
        import torch

        with torch.cuda.device(numbers.device):
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers.detach(), non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record()

    def tolist(self) -> list[list[float]]:
        """The numbers, (rows, columns)."""
        self._there.synchronize()
        rows: list[list[float]] = self._host.tolist()
        return rows


def departed(sample: Sample) -> Sample:
    """The sample with its copies to the host begun; as it is where there is nothing on a GPU."""
    if not getattr(sample.sums, "is_cuda", False):
        return sample
    headroom = None if sample.headroom is None else _copy(sample.headroom)
    return replace(sample, sums=_copy(sample.sums), headroom=headroom)


def _copy(numbers: Numbers) -> Numbers:
    try:
        return _Arriving(numbers)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - no pinned memory is left: the collector reads them from the GPU
        return numbers
