"""Strips: one column of the sums for all layers in one bucket of steps, so that a heatmap reads its pixels.

A run has between 400 and 800 buckets: as it grows they become twice as wide. They hold the merged view: every
attempt up to the first step of the next, all ranks added up. Ingest adds to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from roundoff.metrics import COUNTS, METRICS

from ..database.packing import Numbers, pack, unpack
from ..database.upsert import replacing
from ..models import LayerRow, Resolution, Strip
from .binned import Columns, Ints
from .buckets import Window, reads
from .grouped import group_samples

BUCKETS = 400
"""Buckets that a run keeps at least; at twice as many they are made wider."""

AT_ONCE = 256
"""Strips that are read and written together."""

SAMPLES = "samples"
"""Name of the strip that counts samples."""

COLUMNS = tuple(dict.fromkeys(name for metric in METRICS.values() for name in reads(metric.figure)))
"""The columns of which there are strips: those that figures are made of."""

Table = NDArray[Any]
"""Buckets × layers, int64 for counts and binary64 for sums."""


def add_samples(session: Session, resolution: Resolution, step: Ints, layer: Ints, sums: Columns) -> bool:
    """Add rows that were not there before: their steps, layers, and the columns of `metrics.ROW`.

    Whether all strips were made anew, wider.
    """
    columns = {SAMPLES: np.ones(len(step), dtype="i8"), **{name: sums[name] for name in COLUMNS}}
    _add_rows(session, resolution.run, layer, step - step % resolution.strip_width, columns)
    return _widen(session, resolution)


def rebuild(session: Session, resolution: Resolution, window: Window, steps: Iterable[int]) -> None:
    """Make the buckets that hold `steps` anew from the samples in `window`, the run's merged view."""
    width = resolution.strip_width
    for begin in sorted({step - step % width for step in steps}):
        _drop(session, resolution.run, begin, begin + width)
        inside = Window(window.run, window.attempts, begin, begin + width - 1)
        _fill(session, resolution, inside)


def build(session: Session, resolution: Resolution, window: Window) -> None:
    """Make all strips of a run that has samples and no strips."""
    _fill(session, resolution, window)
    _widen(session, resolution)


def cut(session: Session, resolution: Resolution, window: Window, first_step: int) -> None:
    """Forget what lies from `first_step` on, where a new attempt begins; `window` has that attempt already."""
    width = resolution.strip_width
    # Of a thinned run the bucket that is cut stays whole: nothing tells its halves apart any more.
    begin = -(-first_step // width) * width if resolution.thinned else first_step - first_step % width
    _drop(session, resolution.run, begin, None)
    if first_step % resolution.strip_width and not resolution.thinned:
        rebuild(session, resolution, window, [first_step])


@dataclass(frozen=True, slots=True)
class Strips:
    """Buckets of `width` steps that begin at `step`; tables buckets × layers of how many `samples` and of sums."""

    width: int
    step: Ints
    samples: Table
    tables: dict[str, Table]


def read_strips(session: Session, run: int, names: Sequence[str]) -> Strips:
    """The strips of the columns `names`; no buckets for a run that has none."""
    width = session.scalar(select(Resolution.strip_width).where(Resolution.run == run)) or 1
    layers = _layers(session, run)
    step, samples = _read(session, run, SAMPLES, layers)
    return Strips(width, step, samples, {name: _read(session, run, name, layers)[1] for name in names})


def _layers(session: Session, run: int) -> int:
    return session.scalar(select(func.max(LayerRow.layer)).where(LayerRow.run == run)) or 0


def _read(session: Session, run: int, name: str, layers: int) -> tuple[Ints, Table]:
    rows = session.execute(
        select(Strip.step, Strip.payload).where(Strip.run == run, Strip.name == name).order_by(Strip.step)
    ).all()
    table: Table = np.zeros((len(rows), layers), dtype="i8" if name in (SAMPLES, *COUNTS) else "f8")
    for line, (_, payload) in zip(table, rows, strict=True):
        values = _values(payload)
        line[: len(values)] = values
    return np.array([step for step, _ in rows], dtype="i8"), table


def _values(payload: bytes) -> Numbers:
    return unpack(payload, 1, [0])[0]


def _add(session: Session, run: int, buckets: Ints, tables: Mapping[str, Table]) -> None:
    known = session.execute(
        select(Strip.name, Strip.step, Strip.payload).where(
            Strip.run == run, Strip.name.in_(tables), Strip.step.in_(buckets.tolist())
        )
    )
    old = {(name, step): _values(payload) for name, step, payload in known}
    rows = [
        {"run": run, "name": name, "step": step, "payload": pack([_sum(line, old.get((name, step)))])}
        for name, table in tables.items()
        for step, line in zip(buckets.tolist(), table, strict=True)
    ]
    session.execute(replacing(session, Strip.__table__), rows)  # type: ignore[arg-type]


def _sum(line: Table, before: Numbers | None) -> Table:
    if before is None:
        return line
    longer, shorter = (line, before) if len(line) > len(before) else (before, line)
    total: Table = longer.astype(line.dtype)
    with np.errstate(all="ignore"):
        total[: len(shorter)] += shorter
    return total


def _fill(session: Session, resolution: Resolution, window: Window) -> None:
    """Add the samples in a window, summed by the database."""
    found = group_samples(session, window, resolution.strip_width, COLUMNS)
    _add_rows(session, resolution.run, found.layer, found.step, {SAMPLES: found.samples, **found.sums})


def _add_rows(session: Session, run: int, layer: Ints, bucket: Ints, columns: Columns) -> None:
    if not len(layer):
        return
    buckets, place = np.unique(bucket, return_inverse=True)
    shape = (len(buckets), int(layer.max()))
    left = iter(columns)
    while names := list(islice(left, max(1, AT_ONCE // len(buckets)))):
        _add(session, run, buckets, {name: tabulated(place, layer, columns[name], shape) for name in names})


def tabulated(place: Ints, layer: Ints, values: Table, shape: tuple[int, int]) -> Table:
    """Values by bucket number `place` and layer id as a table; those of the same cell are added up."""
    table = np.zeros(shape, dtype=values.dtype)
    with np.errstate(all="ignore"):
        np.add.at(table, (place, layer - 1), values)
    return table


def _drop(session: Session, run: int, begin: int, end: int | None) -> None:
    conditions = [Strip.run == run, Strip.name.in_((SAMPLES, *COLUMNS)), Strip.step >= begin]
    if end is not None:
        conditions.append(Strip.step < end)
    session.execute(delete(Strip).where(*conditions))


def _widen(session: Session, resolution: Resolution) -> bool:
    """Make the buckets wider where there are too many of them; whether there were."""
    run = resolution.run
    counted = (Strip.run == run, Strip.name == SAMPLES)
    if (session.scalar(select(func.count()).select_from(Strip).where(*counted)) or 0) < 2 * BUCKETS:
        return False
    steps = np.array(session.scalars(select(Strip.step).where(*counted).order_by(Strip.step)).all(), "i8")
    width = suitable_width(steps, resolution.strip_width, BUCKETS)
    layers = _layers(session, run)
    for name in (SAMPLES, *COLUMNS):
        step, table = _read(session, run, name, layers)
        session.execute(delete(Strip).where(Strip.run == run, Strip.name == name))
        begin, wider = widened(step, table, width)
        _add(session, run, begin, {name: wider})
    resolution.strip_width = width
    return True


def suitable_width(steps: Ints, width: int, buckets: int) -> int:
    """`width`, doubled until the steps fall into at most `buckets` buckets."""
    while len(np.unique(steps // width)) > buckets:
        width *= 2
    return width


def widened(step: Ints, table: Table, width: int) -> tuple[Ints, Table]:
    """The same in buckets of `width` steps; `step` is in order."""
    if not len(step):
        return step, table
    begin = step - step % width
    bounds = np.flatnonzero(np.diff(begin, prepend=begin[0] - 1))
    with np.errstate(all="ignore"):
        wider: Table = np.add.reduceat(table, bounds, axis=0, dtype=table.dtype)
    return begin[bounds], wider
