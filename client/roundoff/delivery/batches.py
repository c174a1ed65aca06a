"""Records into one batch of columns, and the batch into the bytes that travel."""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW
from roundoff.wire import (
    Batch,
    Column,
    GroupSamples,
    Headroom,
    LayerSamples,
    ModelSamples,
    Scalars,
)

from .records import HISTOGRAM, Declared, End, Found, Logged, Record, Rows


def build_batch(
    records: Sequence[Record],
    *,
    writer: str,
    seq: int,
    attempt: int,
    rank: int,
    promise_s: float,
    dropped: dict[str, int],
    end: End | None = None,
) -> Batch:
    """One batch that holds `records`, columns in their order."""
    sampled = [record for record in records if isinstance(record, Rows)]
    return Batch(
        writer=writer,
        seq=seq,
        attempt=attempt,
        rank=rank,
        promise_s=promise_s,
        layers=[layer for record in records if isinstance(record, Declared) for layer in record.layers],
        findings=[one for record in records if isinstance(record, Found) for one in record.findings],
        model=_model(sampled),
        samples=_layers([record for record in sampled if record.sums is not None]),
        headroom=_headroom([record for record in sampled if record.headroom is not None]),
        groups=_groups(sampled),
        scalars=_scalars([record for record in records if isinstance(record, Logged)]),
        dropped=dropped,
        end=end,
    )


def encode(batch: Batch) -> bytes:
    """The gzip-compressed JSON body. Level 1: base64 of measured numbers hardly gains from more."""
    body = batch.model_dump_json(exclude_none=True).encode()
    return gzip.compress(body, compresslevel=1, mtime=0)


def _model(sampled: Sequence[Rows]) -> ModelSamples | None:
    if not sampled:
        return None
    return ModelSamples(
        step=Column.ints(record.step for record in sampled),
        sums=_columns(chain.from_iterable(record.model for record in sampled)),
    )


def _layers(sampled: Sequence[Rows]) -> LayerSamples | None:
    if not sampled:
        return None
    return LayerSamples(
        step=_steps(sampled),
        layer=Column.ints(chain.from_iterable(record.layers for record in sampled)),
        sums=_columns(chain.from_iterable(record.sums or () for record in sampled)),
    )


def _headroom(sampled: Sequence[Rows]) -> Headroom | None:
    if not sampled:
        return None
    flat = array("d", chain.from_iterable(record.headroom or () for record in sampled))
    starts = range(0, len(flat), HISTOGRAM)
    return Headroom(
        step=_steps(sampled),
        layer=Column.ints(chain.from_iterable(record.layers for record in sampled)),
        counts=Column.ints(int(n) for start in starts for n in flat[start : start + HEADROOM_BINS]),
        energy=Column.floats(
            chain.from_iterable(flat[start + HEADROOM_BINS : start + HISTOGRAM] for start in starts)
        ),
    )


def _groups(sampled: Sequence[Rows]) -> GroupSamples | None:
    settings = [(record.step, setting) for record in sampled for setting in record.groups]
    if not settings:
        return None
    return GroupSamples(
        step=Column.ints(step for step, _ in settings),
        group=Column.ints(setting.group for _, setting in settings),
        lr=Column.floats(setting.lr for _, setting in settings),
        weight_decay=Column.floats(setting.weight_decay for _, setting in settings),
    )


def _scalars(logged: Sequence[Logged]) -> Scalars | None:
    if not logged:
        return None
    names: dict[str, int] = {}
    used, steps, values = array("q"), array("q"), array("d")
    for record in logged:
        called = array("q", [names.setdefault(name, len(names)) for name in record.names])
        used += called * len(record.steps)
        steps.extend(step for step in record.steps for _ in called)
        values += record.values
    return Scalars(
        step=Column.ints(steps), names=list(names), name=Column.ints(used), value=Column.floats(values)
    )


def _steps(sampled: Sequence[Rows]) -> Column:
    return Column.ints(record.step for record in sampled for _ in record.layers)


def _columns(rows: Iterable[float]) -> dict[str, Column]:
    flat = array("d", rows)
    width = len(ROW)
    return {
        name: Column.ints(map(int, flat[index::width]))
        if name in COUNTS
        else Column.floats(flat[index::width])
        for index, name in enumerate(ROW)
    }
