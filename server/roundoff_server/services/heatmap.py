"""One figure for layers × step buckets, worst layer first."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from roundoff.metrics import METRICS, Metric
from roundoff.wire import Heatmap

from ..models import LayerRow, LayerSample, ModelSample, Run
from .buckets import Extent, Floats, Summed, Window, extent, fetch, reads, shown, start, summed

LAST_SAMPLES = 10
"""Samples at the end of the run by which layers are sorted: the longest window of a verdict."""


def read_heatmap(
    session: Session, run: Run, window: Window, name: str, max_steps: int, max_layers: int
) -> Heatmap:
    """The heatmap. Raises LookupError for an unknown metric."""
    if name not in METRICS:
        raise LookupError(f"there is no metric {name!r} for layers; known are {', '.join(METRICS)}")
    metric = METRICS[name]
    span = _extent(session, window)
    if span is None:
        return Heatmap(run_id=run.id, metric=name, layers=[], steps=[], values=[])
    width = span.bucket(max_steps)
    columns, bucket = reads(metric.figure), start(LayerSample, width)
    query = (
        select(LayerSample.layer, bucket.label("bucket"), *summed(LayerSample, columns))
        .where(*window.of(LayerSample))
        .group_by(LayerSample.layer, "bucket")
    )
    found = fetch(session, query, 2, columns)
    known = session.execute(select(LayerRow.layer, LayerRow.name).where(LayerRow.run == run.run))
    names = {layer: text for layer, text in known}  # noqa: C416
    grid = _Grid(found, metric)
    chosen = grid.worst_first(_last_buckets(span, width))[:max_layers]
    return Heatmap(
        run_id=run.id,
        metric=name,
        layers=[names[int(grid.layers[row])] for row in chosen],
        steps=grid.steps.tolist(),
        values=[shown(grid.values[row], grid.defined[row]) for row in chosen],
        bucket=width,
        sampled=width > 1,
    )


def _extent(session: Session, window: Window) -> Extent | None:
    """Of the model's rows, which are few; of the layers' if a client sends only those."""
    return extent(session, ModelSample, window.of(ModelSample)) or extent(
        session, LayerSample, window.of(LayerSample)
    )


def _last_buckets(span: Extent, width: int) -> int:
    every = (span.last - span.first) / max(1, span.count - 1)
    return LAST_SAMPLES if width == 1 else max(1, math.ceil(LAST_SAMPLES * every / width))


class _Grid:
    """Layers × buckets: `values` and where they are `defined`."""

    def __init__(self, found: Summed, metric: Metric) -> None:
        self.metric = metric
        self.layers, self.row = np.unique(np.array(found.keys[0], "i8"), return_inverse=True)
        self.steps, self.column = np.unique(np.array(found.keys[1], "i8"), return_inverse=True)
        self.found = found
        shape = (len(self.layers), len(self.steps))
        values, defined = found.figure(metric.figure)
        self.values: Floats = np.full(shape, math.nan)
        self.defined: NDArray[np.bool_] = np.zeros(shape, dtype=bool)
        self.values[self.row, self.column] = values
        self.defined[self.row, self.column] = defined

    def worst_first(self, buckets: int) -> list[int]:
        """Rows by the figure over the last `buckets` columns, undefined ones last; model order without a bad end."""
        rows = range(len(self.layers))
        if self.metric.worst is None:
            return list(rows)
        recent = self.column >= len(self.steps) - buckets
        sums = {}
        for name in self.found.names:
            total = np.zeros(len(self.layers), getattr(self.found.sums, name).dtype)
            with np.errstate(all="ignore"):
                np.add.at(total, self.row[recent], getattr(self.found.sums, name)[recent])
            sums[name] = total
        with np.errstate(all="ignore"):
            figure = np.asarray(self.metric.figure(SimpleNamespace(**sums)), "f8")
        sign = -1 if self.metric.worst == "high" else 1
        return sorted(rows, key=lambda row: (bool(np.isnan(figure[row])), sign * figure[row], row))
