"""One figure over steps, down-sampled by the database."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, ColumnElement, case, cast, func, literal, or_, select
from sqlalchemy.orm import Session

from roundoff.metrics import METRICS, Metric, descent_efficiency, effective_lr
from roundoff.wire import Series

from ..models import MODEL, GroupSample, LayerRow, Run, ScalarName, ScalarValue
from .binned import Binned, Floats, figure, in_buckets, joined, nothing
from .buckets import FOREVER, Conditions, Extent, Window, extent, reads, shown, start
from .grouped import group_samples
from .history import History, open_history
from .ingest import digest
from .strips import read_strips, suitable_width

SCALAR = "scalar:"
IN_BUCKET = 4
"""Points that a bucket of a scalar keeps: first, last, lowest, highest."""

FEW_LAYERS = 32
"""Layers of a module up to which each one's own history is read."""

INT64_MIN = -(2**63)
EXPONENT = 0x7FF << 52


@dataclass(frozen=True, slots=True)
class Asked:
    """What a series is asked for."""

    metric: str
    layer: str | None
    max_points: int


def float_of(bits: int) -> float:
    """The binary64 of a stored pattern."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def layer_ids(session: Session, run: Run, asked: str) -> list[int]:
    """Layers meant by a name, an id, or a module prefix, tried in this order. Raises LookupError."""
    exact = session.scalar(
        select(LayerRow.layer).where(LayerRow.run == run.run, LayerRow.digest == digest(asked))
    )
    if exact is not None:
        return [exact]
    rows = session.execute(select(LayerRow.layer, LayerRow.name).where(LayerRow.run == run.run)).all()
    if asked.isascii() and asked.isdigit() and any(str(layer) == asked for layer, _ in rows):
        return [int(asked)]
    inside = [layer for layer, name in rows if name.startswith(f"{asked}.")]
    if not inside:
        raise LookupError(f"run {run.id!r} has no layer and no module {asked!r}")
    return inside


def read_series(session: Session, run: Run, window: Window, asked: Asked) -> Series:
    """The series. Raises LookupError for an unknown metric, layer or scalar."""
    if asked.metric.startswith(SCALAR):
        return _scalar(session, run, window, asked)
    if asked.metric not in METRICS and asked.metric not in ("lr", "effective_lr"):
        known = ", ".join([*METRICS, "effective_lr", "lr", "scalar:NAME"])
        raise LookupError(f"there is no metric {asked.metric!r}; known are {known}")
    layers = None if asked.layer is None else layer_ids(session, run, asked.layer)
    if asked.metric == "lr":
        return _lr(session, run, window, asked, layers)
    return _figure(session, run, window, asked, layers)


def _empty(run: Run, asked: Asked) -> Series:
    return Series(run_id=run.id, metric=asked.metric, layer=asked.layer, steps=[], values=[])


def _figure(session: Session, run: Run, window: Window, asked: Asked, layers: list[int] | None) -> Series:
    metric = METRICS["descent_efficiency" if asked.metric == "effective_lr" else asked.metric]
    found, width = _read(session, window, metric, [MODEL] if layers is None else layers, asked.max_points)
    if not len(found):
        return _empty(run, asked)
    banded = width > 1 and asked.metric in METRICS and len(layers or [MODEL]) == 1
    if asked.metric == "effective_lr":
        values = _effective(found, _rates(session, run, window, layers, width))
    else:
        values = shown(*figure(found, metric.figure))
    return Series(
        run_id=run.id,
        metric=asked.metric,
        layer=asked.layer,
        steps=found.step.tolist(),
        values=values,
        low=_band(found.low[metric.name]) if banded else [],
        high=_band(found.high[metric.name]) if banded else [],
        bucket=width,
        sampled=width > 1,
    )


def _read(
    session: Session, window: Window, metric: Metric, layers: list[int], points: int
) -> tuple[Binned, int]:
    """The buckets of a layer, of several added up, or of the model, and how wide they are."""
    history = open_history(session, window, reads(metric.figure), [metric])
    if len(layers) > FEW_LAYERS:
        return _read_many(session, window, history, layers, points)
    spans = [span for span in (history.extent(layer, points) for layer in layers) if span is not None]
    if not spans:
        return nothing(history.names, history.metrics), 1
    span = Extent(
        min(span.first for span in spans), max(span.last for span in spans), max(span.count for span in spans)
    )
    width = history.width(layers[0], span, points)
    return joined([history.read(layer, width) for layer in layers], width), width


def _read_many(
    session: Session, window: Window, history: History, layers: list[int], points: int
) -> tuple[Binned, int]:
    """Of many layers: from the run's strips, or summed by the database for a part of the steps."""
    whole = not window.apart and window.from_step is None and window.to_step is None
    strips = read_strips(session, window.run, history.names) if whole or history.thinned else None
    if strips is not None and len(strips.step):
        width = suitable_width(strips.step, strips.width, points)
        inside = np.array(layers) - 1
        sums = {name: table[:, inside].sum(axis=1) for name, table in strips.tables.items()}
        samples = strips.samples[:, inside].sum(axis=1)
        seen = (samples > 0) & (strips.step >= (window.from_step or 0))
        seen &= strips.step <= (FOREVER if window.to_step is None else window.to_step)
        found = Binned(
            strips.step[seen], samples[seen], {name: column[seen] for name, column in sums.items()}
        )
        return in_buckets(found, width), width
    span = history.extent(MODEL, points) or history.extent(layers[0], points)
    width = 1 if span is None else span.bucket(points)
    rows = group_samples(session, window, width, history.names, layers)
    return in_buckets(Binned(rows.step, rows.samples, rows.sums), width), width


def _band(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _effective(found: Binned, rates: dict[int, float]) -> list[float | None]:
    steps = found.step.tolist()
    lr = np.array([rates.get(step, math.nan) for step in steps])
    known = np.array([step in rates for step in steps], dtype=bool)
    values, _ = figure(found, lambda sums: effective_lr(sums, lr))
    _, defined = figure(found, descent_efficiency)
    return shown(values, defined & known)


def _group_conditions(session: Session, run: Run, window: Window, layers: list[int] | None) -> Conditions:
    """Rows of the first group that the layers are in, as the lowest rank sends them."""
    within = [] if layers is None or MODEL in layers else [LayerRow.layer.in_(layers)]
    group = (
        session.scalar(select(func.min(LayerRow.group_index)).where(LayerRow.run == run.run, *within)) or 0
    )
    conditions = [*window.of(GroupSample), GroupSample.group_index == group]
    rank = session.scalar(select(func.min(GroupSample.rank)).where(*conditions)) or 0
    return [*conditions, GroupSample.rank == rank]


def _rates(
    session: Session, run: Run, window: Window, layers: list[int] | None, width: int
) -> dict[int, float]:
    """Bucket → the learning rate at its last step."""
    conditions = _group_conditions(session, run, window, layers)
    bucket = start(GroupSample, width)
    newest = func.row_number().over(partition_by=bucket, order_by=GroupSample.step.desc()).label("newest")
    rows = select(bucket.label("bucket"), GroupSample.lr.label("lr"), newest).where(*conditions).subquery()
    query = select(rows.c.bucket, rows.c.lr).where(rows.c.newest == 1).order_by(rows.c.bucket)
    return {step: math.nan if lr is None else lr for step, lr in session.execute(query)}


def _lr(session: Session, run: Run, window: Window, asked: Asked, layers: list[int] | None) -> Series:
    span = extent(session, GroupSample, _group_conditions(session, run, window, layers))
    if span is None:
        return _empty(run, asked)
    width = span.bucket(asked.max_points)
    rates = _rates(session, run, window, layers, width)
    return Series(
        run_id=run.id,
        metric=asked.metric,
        layer=asked.layer,
        steps=list(rates),
        values=list(rates.values()),
        bucket=width,
        sampled=width > 1,
    )


def _scalar(session: Session, run: Run, window: Window, asked: Asked) -> Series:
    name = asked.metric.removeprefix(SCALAR)
    number = session.scalar(
        select(ScalarName.scalar).where(ScalarName.run == run.run, ScalarName.digest == digest(name))
    )
    if number is None:
        raise LookupError(f"run {run.id!r} has no scalar {name!r}")
    conditions = [*window.of(ScalarValue), ScalarValue.scalar == number]
    rank = session.scalar(select(func.min(ScalarValue.rank)).where(*conditions)) or 0
    conditions.append(ScalarValue.rank == rank)
    span = extent(session, ScalarValue, conditions)
    if span is None:
        return _empty(run, asked)
    width = _scalar_width(span, asked.max_points)
    rows = session.execute(_kept(conditions, width)).all()
    return Series(
        run_id=run.id,
        metric=asked.metric,
        layer=None,
        steps=[step for step, _ in rows],
        values=[float_of(bits) for _, bits in rows],
        bucket=width,
        sampled=width > 1,
    )


def _scalar_width(span: Extent, max_points: int) -> int:
    return 1 if span.count <= max_points else span.bucket(max(1, max_points // IN_BUCKET))


def ordered(bits: Any) -> ColumnElement[int]:
    """Integers in the order of the floats whose patterns `bits` are."""
    return case((bits < 0, literal(INT64_MIN, BigInteger) - bits), else_=bits)


def _kept(conditions: Conditions, width: int) -> Any:
    """Rows to show: all, or of each bucket the first, last, lowest and highest finite value, and of the
    non-finite ones the first and last. Real points, so a spike or a NaN never vanishes and none moves."""
    if width == 1:
        return select(ScalarValue.step, ScalarValue.bits).where(*conditions).order_by(ScalarValue.step)
    exponent = literal(EXPONENT, BigInteger)
    finite = case((ScalarValue.bits.op("&")(exponent) == exponent, 0), else_=1)
    inside = [start(ScalarValue, width), finite]
    value = ordered(ScalarValue.bits)
    orders: dict[str, list[ColumnElement[Any]]] = {
        "first": [ScalarValue.step.asc()],
        "last": [ScalarValue.step.desc()],
        "lowest": [value.asc(), ScalarValue.step.asc()],
        "highest": [value.desc(), ScalarValue.step.asc()],
    }
    places = [
        func.row_number().over(partition_by=inside, order_by=order).label(name)
        for name, order in orders.items()
    ]
    rows = select(
        ScalarValue.step.label("step"),
        ScalarValue.bits.label("bits"),
        cast(finite, BigInteger).label("finite"),
        *places,
    )
    found = rows.where(*conditions).subquery()
    extreme = (found.c.finite == 1) & or_(found.c.lowest == 1, found.c.highest == 1)
    return (
        select(found.c.step, found.c.bits)
        .where(or_(found.c.first == 1, found.c.last == 1, extreme))
        .order_by(found.c.step)
    )
