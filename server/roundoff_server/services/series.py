"""One figure over steps, down-sampled by the database."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, ColumnElement, case, cast, func, literal, or_, select
from sqlalchemy.orm import Session

from roundoff.metrics import METRICS, descent_efficiency, effective_lr
from roundoff.wire import Series

from ..models import MODEL, GroupSample, LayerRow, LayerSample, ModelSample, Run, ScalarName, ScalarValue
from .buckets import Conditions, Extent, Summed, Window, extent, fetch, reads, shown, start, summed
from .ingest import digest

SCALAR = "scalar:"
IN_BUCKET = 4
"""Points that a bucket of a scalar keeps: first, last, lowest, highest."""

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
    table: type[LayerSample] | type[ModelSample] = ModelSample if layers is None else LayerSample
    conditions = window.of(table)
    if layers is not None:
        conditions.append(LayerSample.layer.in_(layers))
    span = extent(session, table, conditions)
    if span is None:
        return _empty(run, asked)
    width = span.bucket(asked.max_points)
    metric = METRICS["descent_efficiency" if asked.metric == "effective_lr" else asked.metric]
    names, bucket = reads(metric.figure), start(table, width)
    query = select(bucket.label("bucket"), *summed(table, names)).where(*conditions)
    found = fetch(session, query.group_by("bucket").order_by("bucket"), 1, names)
    if asked.metric == "effective_lr":
        rates = _rates(session, run, window, layers, width)
        values = _effective(found, rates)
    else:
        values = shown(*found.figure(metric.figure))
    return Series(
        run_id=run.id,
        metric=asked.metric,
        layer=asked.layer,
        steps=found.keys[0],
        values=values,
        bucket=width,
        sampled=width > 1,
    )


def _effective(found: Summed, rates: dict[int, float]) -> list[float | None]:
    lr = np.array([rates.get(step, math.nan) for step in found.keys[0]])
    known = np.array([step in rates for step in found.keys[0]], dtype=bool)
    values, _ = found.figure(lambda sums: effective_lr(sums, lr))
    _, defined = found.figure(descent_efficiency)
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
