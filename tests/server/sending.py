"""What a client sends, made by hand: any shape and any number, so that odd ones are easy."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from typing import Any

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW
from roundoff.wire import (
    Batch,
    Column,
    GroupSamples,
    Headroom,
    Layer,
    LayerSamples,
    ModelSamples,
    RunStart,
    Scalars,
)

Row = Mapping[str, float]

HEALTHY: Row = {
    "numel": 1000,
    "zero_grad": 0,
    "attempted": 1000,
    "lost": 10,
    "sum_uu": 4.0,
    "sum_ua": 3.9,
    "expected_roundings": 500,
}
STALLED: Row = {
    "numel": 1000,
    "zero_grad": 0,
    "attempted": 1000,
    "lost": 990,
    "sum_uu": 4.0,
    "sum_ua": 0.1,
    "expected_roundings": 90,
}


def start(token: str = "t1", **fields: Any) -> RunStart:
    """The start of a run's attempt."""
    return RunStart(**{"project": "demo", "name": "bf16", "token": token} | fields)


def layers(*names: str, strategy: str = "none", numel: int = 1000) -> list[Layer]:
    """Declarations with indices 0, 1, …"""
    return [
        Layer(index=index, name=name, shape=[numel], numel=numel, dtype="bfloat16", strategy=strategy)
        for index, name in enumerate(names)
    ]


def columns(rows: Sequence[Row]) -> dict[str, Column]:
    """The columns of `metrics.ROW`, 0 where a row says nothing."""
    return {
        name: Column.ints(int(row.get(name, 0)) for row in rows)
        if name in COUNTS
        else Column.floats(float(row.get(name, 0.0)) for row in rows)
        for name in ROW
    }


def model_samples(rows: Mapping[int, Row]) -> ModelSamples:
    """Step → row."""
    return ModelSamples(step=Column.ints(rows), sums=columns(list(rows.values())))


def layer_samples(rows: Mapping[tuple[int, int], Row]) -> LayerSamples:
    """(index, step) → row."""
    return LayerSamples(
        step=Column.ints(step for _, step in rows),
        layer=Column.ints(index for index, _ in rows),
        sums=columns(list(rows.values())),
    )


def headroom(keys: Sequence[tuple[int, int]]) -> Headroom:
    """A histogram for each (index, step)."""
    flat = range(HEADROOM_BINS * len(keys))
    return Headroom(
        step=Column.ints(step for _, step in keys),
        layer=Column.ints(index for index, _ in keys),
        counts=Column.ints(flat),
        energy=Column.floats(map(float, flat)),
    )


def groups(rates: Mapping[int, float], group: int = 0) -> GroupSamples:
    """Step → learning rate of one group."""
    return GroupSamples(
        step=Column.ints(rates),
        group=Column.ints([group] * len(rates)),
        lr=Column.floats(rates.values()),
        weight_decay=Column.floats([0.1] * len(rates)),
    )


def scalars(values: Sequence[tuple[str, int, float]]) -> Scalars:
    """(name, step, value)."""
    names = list(dict.fromkeys(name for name, _, _ in values))
    return Scalars(
        step=Column.ints(step for _, step, _ in values),
        names=names,
        name=Column.ints(names.index(name) for name, _, _ in values),
        value=Column.floats(value for _, _, value in values),
    )


def batch(seq: int = 0, writer: str = "w1", attempt: int = 1, **fields: Any) -> Batch:
    """A batch of one writer."""
    return Batch(writer=writer, seq=seq, attempt=attempt, **fields)


def steps_of(
    steps: Sequence[int], model: Row, *by_layer: Row, lr: float = 1e-3
) -> dict[str, ModelSamples | LayerSamples | GroupSamples]:
    """The tables of a batch in which every step looks the same."""
    tables: dict[str, ModelSamples | LayerSamples | GroupSamples] = {
        "model": model_samples(dict.fromkeys(steps, model)),
        "groups": groups(dict.fromkeys(steps, lr)),
    }
    if by_layer:
        tables["samples"] = layer_samples(
            {(i, step): row for step in steps for i, row in enumerate(by_layer)}
        )
    return tables


def packed(body: Batch) -> bytes:
    """As it travels."""
    return gzip.compress(body.model_dump_json(exclude_none=True).encode())
