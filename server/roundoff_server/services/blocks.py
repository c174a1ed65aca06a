"""Blocks: up to 64 buckets of one layer's history as one row, in a few levels of ever wider buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from roundoff.metrics import METRICS, ROW, Metric

from ..database.packing import pack, unpack
from ..database.upsert import replacing
from ..models import Block
from .binned import Binned, Floats, Ints, nothing

BUCKETS = 64
"""Buckets in a block."""

FACTOR = 8
"""Buckets of one level in a bucket of the next."""

LEVELS = 5
"""Rolled-up levels: the last has buckets of about 30,000 samples."""

EXTREMES = tuple(METRICS)
BLOCK = ("bucket", "samples", *ROW, *(f"low {m}" for m in EXTREMES), *(f"high {m}" for m in EXTREMES))
"""Columns of a payload: the bucket's number in the block, samples in it, their sums, and of each metric the lowest
and the highest in any one sample, as binary32 rounded outwards."""

_PLACE = {name: index for index, name in enumerate(BLOCK)}


def bucket_width(unit: int, level: int) -> int:
    """Steps in a bucket of `level`, which counts from 1."""
    return int(unit * FACTOR ** (level - 1))


def block_width(unit: int, level: int) -> int:
    """Steps in a block of `level`."""
    return BUCKETS * bucket_width(unit, level)


def level_for(unit: int | None, width: int) -> int:
    """The coarsest level whose buckets fit into buckets of `width` steps; 0 for the samples themselves."""
    level = 0
    while unit is not None and level < LEVELS and bucket_width(unit, level + 1) <= width:
        level += 1
    return level


def to_payload(binned: Binned, start: int, width: int) -> bytes:
    """The buckets of a block that begins at step `start`, each `width` steps wide."""
    lows = [_outwards(binned.low[name], -np.inf) for name in EXTREMES]
    highs = [_outwards(binned.high[name], np.inf) for name in EXTREMES]
    number = (binned.step - start) // width
    return pack([number, binned.samples, *(binned.sums[name] for name in ROW), *lows, *highs])


def _outwards(values: Floats, towards: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """As binary32, moved towards `towards` where it would lie inside."""
    with np.errstate(all="ignore"):
        near = values.astype("f4")
        inside = near > values if towards < 0 else near < values
        return np.where(inside, np.nextafter(near, np.float32(towards)), near).astype("f4")


def put_block(session: Session, key: dict[str, int], payload: bytes) -> None:
    """Write one block; `key` holds the columns of its primary key."""
    session.execute(replacing(session, Block.__table__), {**key, "payload": payload})  # type: ignore[arg-type]


def read_blocks(
    session: Session,
    run: int,
    layer: int,
    attempt: int,
    level: int,
    unit: int,
    steps: tuple[int, int],
    names: Sequence[str] = ROW,
    metrics: Sequence[Metric] = tuple(METRICS.values()),
) -> Binned:
    """Buckets of a level that lie in `steps`, the last not included, with the sums and metrics that are named."""
    low, high = steps
    width = bucket_width(unit, level)
    rows = session.execute(
        select(Block.step, Block.payload)
        .where(
            Block.run == run,
            Block.layer == layer,
            Block.attempt == attempt,
            Block.level == level,
            Block.step > low - block_width(unit, level),
            Block.step < high,
        )
        .order_by(Block.step)
    ).all()
    if not rows:
        return nothing(names, metrics)
    wanted = [
        "bucket",
        "samples",
        *names,
        *(f"low {m.name}" for m in metrics),
        *(f"high {m.name}" for m in metrics),
    ]
    places = [_PLACE[name] for name in wanted]
    read = [unpack(payload, len(BLOCK), places) for _, payload in rows]
    step: Ints = np.concatenate(
        [start + numbers[0] * width for (start, _), numbers in zip(rows, read, strict=True)]
    )
    inside = (step >= low) & (step < high)
    columns = [np.concatenate(parts)[inside] for parts in list(zip(*read, strict=True))[1:]]
    sums, extremes = (
        columns[1 : 1 + len(names)],
        [column.astype("f8") for column in columns[1 + len(names) :]],
    )
    keys = [metric.name for metric in metrics]
    return Binned(
        step[inside],
        columns[0],
        dict(zip(names, sums, strict=True)),
        dict(zip(keys, extremes[: len(keys)], strict=True)),
        dict(zip(keys, extremes[len(keys) :], strict=True)),
    )
