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
    ranks = ranks_of(session, window.run, window.rank)
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
    # Each layer by its id: else SQLite may read the whole run, its key being (run, layer, attempt, rank, step).
    wanted = select(LayerRow.layer).where(LayerRow.run == run) if layers is None else layers
    return (
        select(LayerSample.layer, bucket.label("bucket"), func.count(), *summed(LayerSample, names))
        .where(
            LayerSample.run == run,
            LayerSample.layer.in_(wanted),
            LayerSample.attempt == attempt,
            LayerSample.rank.in_(ranks),
            LayerSample.step >= steps[0],
            LayerSample.step < steps[1],
        )
        .group_by(LayerSample.layer, "bucket")
    )
