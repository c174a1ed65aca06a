"""Buckets of steps as arrays: summed sums, and the lowest and highest that a figure was in any one sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundoff.metrics import Metric

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = dict[str, NDArray[np.int64] | NDArray[np.float64]]


@dataclass(slots=True)
class Binned:
    """Buckets in order: `step` their first steps, `samples` how many samples each has, `sums` by column.

    `low` and `high` are by metric, NaN where no sample of the bucket has a finite figure.
    """

    step: Ints
    samples: Ints
    sums: Columns
    low: dict[str, Floats] = field(default_factory=dict)
    high: dict[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    def namespace(self) -> SimpleNamespace:
        """The sums as the figures of `roundoff.metrics` read them."""
        return SimpleNamespace(**self.sums)


def nothing(names: Sequence[str], metrics: Sequence[Metric] = ()) -> Binned:
    """No buckets."""
    whole, real = np.zeros(0, dtype="i8"), np.zeros(0)
    extremes = {metric.name: real for metric in metrics}
    return Binned(whole, whole, dict.fromkeys(names, whole), dict(extremes), dict(extremes))


def of_samples(step: Ints, sums: Columns, metrics: Sequence[Metric] = ()) -> Binned:
    """Samples as buckets of one each, in the order of `step`, which has every step once."""
    rows = SimpleNamespace(**sums)
    figures = {}
    with np.errstate(all="ignore"):  # ∞/∞ is NaN, and no extreme
        for metric in metrics:
            values = np.asarray(metric.figure(rows), "f8")
            figures[metric.name] = np.where(np.isfinite(values), values, np.nan)
    return Binned(step, np.ones(len(step), dtype="i8"), sums, figures, dict(figures))


def in_buckets(binned: Binned, width: int) -> Binned:
    """The same in wider buckets, which begin at multiples of `width`. Steps may come in any order."""
    if not len(binned):
        return binned
    start = binned.step - binned.step % width
    order = np.argsort(start, kind="stable")
    bounds = np.flatnonzero(np.diff(start[order], prepend=start[order[0]] - 1))
    with np.errstate(all="ignore"):
        return Binned(
            start[order][bounds],
            np.add.reduceat(binned.samples[order], bounds),
            {name: np.add.reduceat(values[order], bounds) for name, values in binned.sums.items()},
            {name: np.fmin.reduceat(values[order], bounds) for name, values in binned.low.items()},
            {name: np.fmax.reduceat(values[order], bounds) for name, values in binned.high.items()},
        )


def joined(parts: Sequence[Binned], width: int) -> Binned:
    """Parts of one history in buckets of `width` steps; buckets of the same steps are added up."""
    if len(parts) == 1:
        return in_buckets(parts[0], width)
    first = parts[0]
    return in_buckets(
        Binned(
            np.concatenate([part.step for part in parts]),
            np.concatenate([part.samples for part in parts]),
            {name: np.concatenate([part.sums[name] for part in parts]) for name in first.sums},
            {name: np.concatenate([part.low[name] for part in parts]) for name in first.low},
            {name: np.concatenate([part.high[name] for part in parts]) for name in first.high},
        ),
        width,
    )


def figure(binned: Binned, formula: Callable[[Any], Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """The figure of every bucket, and where it is defined: a NaN of non-finite sums is a value."""
    with np.errstate(all="ignore"):  # ∞/∞ is NaN, and shown as such
        values = np.asarray(formula(binned.namespace()), "f8")
    finite = np.ones(len(binned), dtype=bool)
    for column in binned.sums.values():
        finite &= np.isfinite(column)
    return values, ~(np.isnan(values) & finite)
