"""Buckets of steps: how wide, and the sums inside them, made by the database."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, cast, func, literal_column, or_, select
from sqlalchemy.orm import Session

from roundoff.metrics import COUNTS

from ..models import Attempt, GroupSample, LayerSample, ModelSample, Run, ScalarValue

Sampled = type[LayerSample] | type[ModelSample] | type[GroupSample] | type[ScalarValue]
Floats = NDArray[np.float64]
Conditions = list[ColumnElement[bool]]


FOREVER = 2**62
"""A step that no run reaches."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of a table to read, between two steps, both included.

    Several attempts are merged; one alone is whole. `rank` is None for all of them. `apart` says that this is not
    the run's merged view.
    """

    run: int
    attempts: Sequence[Attempt]
    from_step: int | None = None
    to_step: int | None = None
    rank: int | None = None
    apart: bool = False

    def spans(self) -> list[tuple[int, int, int]]:
        """(attempt, first step, step after the last) of what to read of each attempt, empty ones left out."""
        low, high = self.from_step or 0, FOREVER if self.to_step is None else self.to_step + 1
        spans = []
        for attempt in self.attempts:
            cut = len(self.attempts) > 1
            first = attempt.first_step if cut and attempt.number > 1 else 0
            end = attempt.end_step if cut and attempt.end_step is not None else FOREVER
            if max(first, low) < min(end, high):
                spans.append((attempt.number, max(first, low), min(end, high)))
        return spans

    def of(self, table: Sampled) -> Conditions:
        """As SQL. Each attempt counts from its declared first step to the next one's."""
        conditions: Conditions = [table.run == self.run]
        if len(self.attempts) > 1:
            conditions.append(or_(*(_within(table, attempt) for attempt in self.attempts)))
        if self.from_step is not None:
            conditions.append(table.step >= self.from_step)
        if self.to_step is not None:
            conditions.append(table.step <= self.to_step)
        if self.rank is not None:
            conditions.append(table.rank == self.rank)
        return conditions


def _within(table: Sampled, attempt: Attempt) -> ColumnElement[bool]:
    parts: Conditions = [table.attempt == attempt.number]
    if attempt.number > 1:
        parts.append(table.step >= attempt.first_step)
    if attempt.end_step is not None:
        parts.append(table.step < attempt.end_step)
    return and_(*parts)


def window(session: Session, run: Run, from_step: int | None = None, to_step: int | None = None) -> Window:
    """The merged view of a run."""
    attempts = session.scalars(select(Attempt).where(Attempt.run == run.run).order_by(Attempt.number)).all()
    return Window(run.run, attempts, from_step, to_step)


def apart(window: Window, attempt: int | None, rank: int | None) -> Window:
    """One attempt of a window, to its own end, or one rank. Raises LookupError for an attempt that is not there."""
    attempts = [one for one in window.attempts if attempt in (None, one.number)]
    if attempt is not None and not attempts:
        raise LookupError(f"there is no attempt {attempt}")
    return replace(window, attempts=attempts, rank=rank, apart=(attempt, rank) != (None, None))


@dataclass(frozen=True, slots=True)
class Extent:
    """Sampled steps: the first, the last, how many."""

    first: int
    last: int
    count: int

    def bucket(self, points: int) -> int:
        """Width of the buckets that leave at most `points` of them: 1, or a power of two.

        A width stays while a run grows, until twice as many steps need the next; buckets start at multiples
        of it, so points do not move between two reads.
        """
        if self.count <= points:
            return 1
        width: int = 2 ** max(1, math.ceil(math.log2((self.last - self.first + 1) / points)))
        while self.last // width - self.first // width >= points:
            width *= 2
        return width


def extent(session: Session, table: Sampled, conditions: Conditions) -> Extent | None:
    """The steps that rows under `conditions` have; None without rows."""
    first, last, count = session.execute(
        select(func.min(table.step), func.max(table.step), func.count(table.step.distinct())).where(
            *conditions
        )
    ).one()
    return None if first is None else Extent(first, last, count)


def start(table: Sampled, width: int) -> ColumnElement[int]:
    """First step of the bucket that a row lies in."""
    if width == 1:
        return table.step.expression
    number = literal_column(str(int(width)), BigInteger)
    return table.step - table.step % number


def reads(figure: Callable[[Any], Any]) -> list[str]:
    """The columns that a figure is made from, found by letting it read from something that takes notes."""
    seen: list[str] = []

    class Notes:
        def __getattr__(self, name: str) -> float:
            seen.append(name)
            return 1.0

    figure(Notes())
    return list(dict.fromkeys(seen))


def summed(table: type[LayerSample] | type[ModelSample], names: Sequence[str]) -> list[ColumnElement[Any]]:
    """Σ of each column; a sum with a NaN in it (NULL in SQLite) is NULL."""
    columns: list[ColumnElement[Any]] = []
    for name in names:
        column = getattr(table, name)
        total = func.sum(column)
        if name in COUNTS:
            columns.append(cast(func.coalesce(total, 0), BigInteger).label(name))
        else:
            columns.append(case((func.count(column) == func.count(), total), else_=None).label(name))
    return columns


@dataclass(slots=True)
class Summed:
    """Summed columns of many buckets. `key` columns say which bucket each is."""

    keys: list[list[int]]
    sums: SimpleNamespace
    names: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys[0])

    def figure(self, formula: Callable[[Any], Any]) -> tuple[Floats, NDArray[np.bool_]]:
        """The figure of every bucket, and where it is defined: a NaN of non-finite sums is a value."""
        with np.errstate(all="ignore"):  # ∞/∞ is NaN, and shown as such
            values = np.asarray(formula(self.sums), "f8")
        finite = np.ones(len(self), dtype=bool)
        for name in self.names:
            finite &= np.isfinite(getattr(self.sums, name))
        return values, ~(np.isnan(values) & finite)


def fetch(session: Session, query: Select[Any], keys: int, names: Sequence[str]) -> Summed:
    """Run a query of `keys` integer columns and then one column per name."""
    columns: list[Any] = list(zip(*session.execute(query), strict=True)) or [()] * (keys + len(names))
    sums = {
        name: np.array(column, dtype="i8" if name in COUNTS else "f8")
        for name, column in zip(names, columns[keys:], strict=True)
    }
    return Summed([list(column) for column in columns[:keys]], SimpleNamespace(**sums), list(names))


def shown(values: Floats, defined: NDArray[np.bool_]) -> list[Any]:
    """For an answer, as lists of the same shape: None where undefined."""
    objects = values.astype(object)
    objects[~defined] = None
    found: list[Any] = objects.tolist()
    return found
