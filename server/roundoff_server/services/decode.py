"""Columns from the wire as numpy arrays, checked as a whole: no Python object per value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW
from roundoff.wire import Column, GroupSamples, Headroom, LayerSamples, ModelSamples, Scalars

from .problems import FieldError

Arrays = dict[str, NDArray[np.int64] | NDArray[np.float64]]

MAX_STEP = 2**53
"""Steps stay whole in a JSON number."""

MAX_COUNT = 2**44
"""Elements in one row: far above any model, and small enough that half a million rows add up in 64 bits."""

MAX_SUM = 1e290
"""A sum beyond it is kept as infinity: PostgreSQL refuses to add finite numbers up to an infinite one."""


def whole(column: Column, field: str, high: int) -> NDArray[np.int64]:
    """A column of integers in 0 … high. Raises `FieldError` otherwise."""
    if column.type != "i8":
        raise FieldError(field, f"needs integers (i8), has type {column.type}")
    values = np.frombuffer(column.raw(), column.numpy_type).astype("i8", copy=False)
    if len(values) and (int(values.min()) < 0 or int(values.max()) > high):
        raise FieldError(field, f"needs values from 0 to {high}, has {values.min()} to {values.max()}")
    return values


def real(column: Column, field: str) -> NDArray[np.float64]:
    """A column of floats, every value allowed. Raises `FieldError` for integers."""
    if column.type != "f8":
        raise FieldError(field, f"needs floats (f8), has type {column.type}")
    return np.frombuffer(column.raw(), column.numpy_type).astype("f8", copy=False)


def _bounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(values) > MAX_SUM, np.copysign(np.inf, values), values)


def steps(column: Column, field: str) -> NDArray[np.int64]:
    """A column of optimizer steps."""
    return whole(column, f"{field}.step", MAX_STEP)


def sums(table: ModelSamples | LayerSamples, field: str) -> Arrays:
    """`step` and every column of `metrics.ROW`."""
    arrays: Arrays = {"step": steps(table.step, field)}
    for name in ROW:
        column, path = table.sums[name], f"{field}.sums.{name}"
        arrays[name] = whole(column, path, MAX_COUNT) if name in COUNTS else _bounded(real(column, path))
    return arrays


def layer_numbers(column: Column, field: str, known: dict[int, int]) -> NDArray[np.int64]:
    """The run's layer ids for a column of the writer's indices. Raises `FieldError` for an undeclared index."""
    indices = whole(column, f"{field}.layer", MAX_STEP)
    used, place = np.unique(indices, return_inverse=True)
    unknown = [int(index) for index in used if int(index) not in known]
    if unknown:
        raise FieldError(f"{field}.layer", f"index {unknown[0]} was not declared by this writer")
    return np.array([known[int(index)] for index in used], dtype="i8")[place]


def histograms(table: Headroom) -> tuple[list[bytes], list[bytes]]:
    """The two histograms of each row as little-endian words."""
    counts = whole(table.counts, "headroom.counts", MAX_COUNT).astype("<i8", copy=False)
    energy = real(table.energy, "headroom.energy").astype("<f8", copy=False)
    return _cut(counts.tobytes()), _cut(energy.tobytes())


def _cut(words: bytes) -> list[bytes]:
    width = 8 * HEADROOM_BINS
    return [words[start : start + width] for start in range(0, len(words), width)]


def settings(table: GroupSamples) -> Arrays:
    """`step`, `group_index`, `lr`, `weight_decay`."""
    return {
        "step": steps(table.step, "groups"),
        "group_index": whole(table.group, "groups.group", 2**31 - 1),
        "lr": real(table.lr, "groups.lr"),
        "weight_decay": real(table.weight_decay, "groups.weight_decay"),
    }


def scalars(table: Scalars) -> Arrays:
    """`step`, `name` (index into `names`) and `bits`, the 64-bit patterns of the values read as int64."""
    names = whole(table.name, "scalars.name", MAX_STEP)
    if len(names) and int(names.max()) >= len(table.names):
        raise FieldError("scalars.name", f"index {names.max()} is beyond the {len(table.names)} names")
    bits = np.frombuffer(real(table.value, "scalars.value").astype("<f8").tobytes(), "<i8")
    return {"step": steps(table.step, "scalars"), "name": names, "bits": bits.astype("i8", copy=False)}
