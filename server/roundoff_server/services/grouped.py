"""Sums of many layers by bucket, made by the database from the samples themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from roundoff.metrics import COUNTS

from ..models import LayerRow, LayerSample
from .binned import Columns, Ints
from .buckets import Window, start, summed
from .samples import ranks_of


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows of one layer and one bucket each: layer ids, first steps, how many samples, and their summed sums.

    Two attempts in one bucket are two rows.
    """

    layer: Ints
    step: Ints
    samples: Ints
    sums: Columns

    def __len__(self) -> int:
        return len(self.step)


def group_samples(
    session: Session, window: Window, width: int, names: Sequence[str], layers: Sequence[int] | None = None
) -> Grouped:
    """The samples in a window in buckets of `width` steps: of some layers, or of all."""
    ranks = ranks_of(session, window.run)
    rows = [
        row
        for attempt, low, high in window.spans()
        for row in session.execute(
            _query(window.run, attempt, ranks.get(attempt, []), (low, high), width, names, layers)
        )
    ]
    columns = list(zip(*rows, strict=True)) or [()] * (3 + len(names))
    layer, step, samples = (np.array(column, dtype="i8") for column in columns[:3])
    sums: Columns = {
        name: np.array(column, dtype="i8" if name in COUNTS else "f8")
        for name, column in zip(names, columns[3:], strict=True)
    }
    return Grouped(layer, step, samples, sums)


def _query(
    run: int,
    attempt: int,
    ranks: Sequence[int],
    steps: tuple[int, int],
    width: int,
    names: Sequence[str],
    layers: Sequence[int] | None,
) -> Select[Any]:
    bucket = start(LayerSample, width)
    # From layers, so that SQLite seeks (run, layer, attempt, rank, step) instead of reading the whole run.
    query = (
        select(LayerSample.layer, bucket.label("bucket"), func.count(), *summed(LayerSample, names))
        .select_from(LayerRow)
        .join(LayerSample, (LayerSample.run == LayerRow.run) & (LayerSample.layer == LayerRow.layer))
        .where(
            LayerRow.run == run,
            LayerSample.attempt == attempt,
            LayerSample.rank.in_(ranks),
            LayerSample.step >= steps[0],
            LayerSample.step < steps[1],
        )
        .group_by(LayerSample.layer, "bucket")
    )
    return query if layers is None else query.where(LayerRow.layer.in_(layers))
