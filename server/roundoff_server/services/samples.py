"""Read the stored samples of one layer, or of the model, with the ranks added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from roundoff.metrics import COUNTS, Metric

from ..models import MODEL, LayerSample, ModelSample, Writer
from .binned import Binned, Columns, nothing, of_samples
from .buckets import summed


@dataclass(frozen=True, slots=True)
class Scope:
    """The layer `layer` of one attempt, or its model (`MODEL`), as `ranks` have sent it."""

    run: int
    layer: int
    attempt: int
    ranks: Sequence[int]

    @property
    def table(self) -> type[LayerSample] | type[ModelSample]:
        """Where its samples are."""
        return ModelSample if self.layer == MODEL else LayerSample

    def within(self, steps: tuple[int, int]) -> list[ColumnElement[bool]]:
        """Its samples in `steps`, the last not included, as SQL that every key column of the table is in."""
        table = self.table
        conditions: list[ColumnElement[bool]] = [table.run == self.run]
        if self.layer != MODEL:
            conditions.append(LayerSample.layer == self.layer)
        rank = table.rank == self.ranks[0] if len(self.ranks) == 1 else table.rank.in_(self.ranks)
        return [
            *conditions,
            table.attempt == self.attempt,
            rank,
            table.step >= steps[0],
            table.step < steps[1],
        ]


def ranks_of(session: Session, run: int, rank: int | None = None) -> dict[int, list[int]]:
    """Attempt → the ranks that send for it, or only one of them."""
    query = select(Writer.attempt, Writer.rank).where(Writer.run == run).distinct()
    if rank is not None:
        query = query.where(Writer.rank == rank)
    found: dict[int, list[int]] = {}
    for attempt, rank in session.execute(query.order_by(Writer.attempt, Writer.rank)):
        found.setdefault(attempt, []).append(rank)
    return found


def read_samples(
    session: Session,
    scope: Scope,
    steps: tuple[int, int],
    names: Sequence[str],
    metrics: Sequence[Metric] = (),
) -> Binned:
    """The samples in `steps`, the last not included, as buckets of one sample."""
    table = scope.table
    query = select(table.step).where(*scope.within(steps)).order_by(table.step)
    if len(scope.ranks) == 1:
        query = query.add_columns(*(_column(table, name) for name in names))
    else:
        query = query.add_columns(*summed(table, names)).group_by(table.step)
    columns: list[Any] = list(zip(*session.execute(query), strict=True))
    if not columns:
        return nothing(names, metrics)
    sums: Columns = {
        name: np.array(column, dtype="i8" if name in COUNTS else "f8")
        for name, column in zip(names, columns[1:], strict=True)
    }
    return of_samples(np.array(columns[0], dtype="i8"), sums, metrics)


def _column(table: type[LayerSample] | type[ModelSample], name: str) -> ColumnElement[Any]:
    column = getattr(table, name)
    return func.coalesce(column, 0) if name in COUNTS else column.expression
