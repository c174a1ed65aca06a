"""Samples as a watch hands them over, without torch."""

from __future__ import annotations

from roundoff.delivery import GroupSetting, Sample
from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW
from roundoff.wire import Layer


class Table:
    """Rows of numbers with `tolist`, like a tensor's."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows

    def tolist(self) -> list[list[float]]:
        return self.rows


def layers(count: int) -> list[Layer]:
    """Declarations of `count` layers of 10 elements."""
    return [
        Layer(index=i, name=f"layer.{i}", shape=[10], numel=10, dtype="bfloat16", strategy="none")
        for i in range(count)
    ]


def sample(step: int, count: int = 2, *, headroom: bool = True, **values: float) -> Sample:
    """One step of `count` layers; row i holds i + 1 for every count and (i + 1)/10 for every sum."""
    rows = [
        [values.get(name, float(i + 1) if name in COUNTS else (i + 1) / 10) for name in ROW]
        for i in range(count)
    ]
    bins = [[float(i)] * HEADROOM_BINS + [i / 10] * HEADROOM_BINS for i in range(count)]
    return Sample(
        step, range(count), Table(rows), Table(bins) if headroom else None, [GroupSetting(0, 1e-3, 0.1)]
    )
