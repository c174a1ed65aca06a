"""One figure for layers × step buckets, worst layer first."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from roundoff.metrics import METRICS, Metric
from roundoff.wire import Heatmap

from ..models import LayerRow, Run
from .binned import Floats
from .buckets import Window, reads, shown
from .grouped import group_samples
from .samples import ranks_of
from .strips import Strips, Table, read_strips, suitable_width, tabulated, widened

LAST_SAMPLES = 10
"""Samples at the end of the run by which layers are sorted: the longest window of a verdict."""


def read_heatmap(
    session: Session, run: Run, window: Window, name: str, max_steps: int, max_layers: int
) -> Heatmap:
    """The heatmap. Raises LookupError for an unknown metric."""
    if name not in METRICS:
        raise LookupError(f"there is no metric {name!r} for layers; known are {', '.join(METRICS)}")
    metric = METRICS[name]
    strips = read_strips(session, run.run, reads(metric.figure))
    if not len(strips.step):
        strips = _from_samples(session, window, reads(metric.figure))
    if not len(strips.step):
        return Heatmap(run_id=run.id, metric=name, layers=[], steps=[], values=[])
    ranks = max(map(len, ranks_of(session, run.run).values()), default=1)
    grid = _Grid(strips, metric, suitable_width(strips.step, strips.width, max_steps), ranks)
    known = session.execute(select(LayerRow.layer, LayerRow.name).where(LayerRow.run == run.run))
    names = {layer: text for layer, text in known}  # noqa: C416
    chosen = grid.worst_first()[:max_layers]
    return Heatmap.model_construct(  # numbers by the hundred thousand, just made: not looked at one by one
        run_id=run.id,
        metric=name,
        layers=[names[column + 1] for column in chosen],
        steps=grid.step.tolist(),
        values=grid.rows(chosen),
        bucket=grid.width,
        sampled=grid.width > 1,
    )


def _from_samples(session: Session, window: Window, names: list[str]) -> Strips:
    """Of a run that an earlier version has stored, and that has got nothing since: summed by the database."""
    found = group_samples(session, window, 1, names)
    if not len(found):
        return Strips(1, found.step, found.samples, {})
    step, place = np.unique(found.step, return_inverse=True)
    shape = (len(step), int(found.layer.max()))
    tables = {name: tabulated(place, found.layer, column, shape) for name, column in found.sums.items()}
    return Strips(1, step, tabulated(place, found.layer, found.samples, shape), tables)


class _Grid:
    """Buckets × layers in buckets of `width` steps; `ranks` send the samples of each step."""

    def __init__(self, strips: Strips, metric: Metric, width: int, ranks: int) -> None:
        self.metric, self.width = metric, width
        self.step, self.samples = widened(strips.step, strips.samples, width)
        self.sums = {name: widened(strips.step, table, width)[1] for name, table in strips.tables.items()}
        last = _last_buckets(strips.samples, ranks)
        with np.errstate(all="ignore"):
            self.recent = {name: table[-last:].sum(axis=0) for name, table in strips.tables.items()}

    def rows(self, chosen: list[int]) -> list[list[float | None]]:
        """The figure of each of the layers, None where undefined."""
        with np.errstate(all="ignore"):
            sums = {name: table[:, chosen] for name, table in self.sums.items()}
            values = np.asarray(self.metric.figure(SimpleNamespace(**sums)), "f8")
        defined = self._defined(values, sums) & (self.samples[:, chosen] > 0)
        return shown(values.T, defined.T)

    def worst_first(self) -> list[int]:
        """Layers by the figure over the last samples, undefined ones last; model order without a bad end."""
        layers = np.flatnonzero(self.samples.any(axis=0)).tolist()
        if self.metric.worst is None:
            return layers
        with np.errstate(all="ignore"):
            figure = np.asarray(self.metric.figure(SimpleNamespace(**self.recent)), "f8")
        sign = -1 if self.metric.worst == "high" else 1
        return sorted(layers, key=lambda layer: (bool(np.isnan(figure[layer])), sign * figure[layer], layer))

    @staticmethod
    def _defined(values: Floats, sums: dict[str, Table]) -> NDArray[np.bool_]:
        """Where the figure is a value: a NaN of non-finite sums is one."""
        finite = np.ones(values.shape, dtype=bool)
        for table in sums.values():
            finite &= np.isfinite(table)
        return ~(np.isnan(values) & finite)


def _last_buckets(samples: Table, ranks: int) -> int:
    """How many buckets at the end hold the last samples of the layers that have most of them."""
    most = samples[::-1].max(axis=1).cumsum()
    return int(np.searchsorted(most, LAST_SAMPLES * ranks)) + 1
