"""Read the stored samples of one layer, or of the model, with the ranks added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, select
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
    if len(scope.ranks) == 1:
        rows = _of_rank(session, scope, steps, tuple(names))
    else:
        table = scope.table
        query = select(table.step, *summed(table, names)).where(*scope.within(steps))
        rows = session.execute(query.group_by(table.step).order_by(table.step)).all()
    if not rows:
        return nothing(names, metrics)
    columns: list[Any] = list(zip(*rows, strict=True))
    sums: Columns = {
        name: np.array(column, dtype="i8" if name in COUNTS else "f8")
        for name, column in zip(names, columns[1:], strict=True)
    }
    return of_samples(np.array(columns[0], dtype="i8"), sums, metrics)


def _of_rank(session: Session, scope: Scope, steps: tuple[int, int], names: tuple[str, ...]) -> Sequence[Any]:
    """Rows as the driver gives them: roll-ups read every sample once, and an object for each row would cost most."""
    keys = {"run": scope.run, "attempt": scope.attempt, "rank": scope.ranks[0]}
    keys |= {} if scope.layer == MODEL else {"layer": scope.layer}
    connection = session.connection()
    query = _query(connection.dialect.name, scope.table.__tablename__, tuple(keys), names)
    result = connection.exec_driver_sql(query, (*keys.values(), *steps))
    assert result.cursor is not None
    found: Sequence[Any] = result.cursor.fetchall()
    result.close()
    return found


@lru_cache(maxsize=256)
def _query(dialect: str, table: str, keys: tuple[str, ...], names: tuple[str, ...]) -> str:
    mark = "?" if dialect == "sqlite" else "%s"
    columns = (f"coalesce({name}, 0)" if name in COUNTS else name for name in names)
    where = (*(f"{key} = {mark}" for key in keys), f"step >= {mark}", f"step < {mark}")
    return f"SELECT step, {', '.join(columns)} FROM {table} WHERE {' AND '.join(where)} ORDER BY step"
