"""Columns and batches through strict JSON: every bit, and clear words for what is wrong."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from pydantic import ValidationError

from roundoff.metrics import COUNTS, ROW
from roundoff.wire import Batch, Column, Headroom, LayerSamples, RunStart, Scalars, Series

HARD = [math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, -2.2e-308, 1e308, 0.1]


def bits(values: list[float]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


def samples(rows: int = 2, **extra: Column) -> dict[str, object]:
    sums = {name: (Column.ints if name in COUNTS else Column.floats)([1] * rows) for name in ROW}
    return {"step": Column.ints(range(rows)), "layer": Column.ints([0] * rows), "sums": {**sums, **extra}}


def test_every_bit_of_a_float_survives_strict_json() -> None:
    scalars = Scalars(
        step=Column.ints(range(len(HARD))),
        names=["loss"],
        name=Column.ints([0] * len(HARD)),
        value=Column.floats(HARD),
    )
    text = Batch(writer="w", seq=0, attempt=1, scalars=scalars).model_dump_json()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not strict JSON")

    json.loads(text, parse_constant=refuse)
    back = Batch.model_validate_json(text)
    assert back.scalars is not None
    assert bits(back.scalars.value.values()) == bits(HARD)  # type: ignore[arg-type]
    column = back.scalars.value
    assert np.frombuffer(column.raw(), column.numpy_type).tobytes() == b"".join(bits(HARD))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 1000])
def test_length_is_known_without_decoding(n: int) -> None:
    assert len(Column.ints(range(n))) == n
    assert Column.ints(range(n)).values() == list(range(n))


def test_whole_numbers_are_exact_beyond_2_to_the_53() -> None:
    values = [2**53 + 1, -(2**63), 2**63 - 1]
    assert Column.ints(values).values() == values


@pytest.mark.parametrize("data", ["???", "AAAA", "AAAAAAAAAAA=x"])
def test_a_damaged_column_is_refused(data: str) -> None:
    with pytest.raises(ValidationError, match=r"not base64|64-bit words"):
        Column(type="f8", data=data)


def test_columns_of_different_length_are_named() -> None:
    with pytest.raises(ValidationError, match=r"differ in length from step \(2\): \{'lost': 3\}"):
        LayerSamples.model_validate(samples(lost=Column.ints([1, 2, 3])))


def test_missing_unknown_and_mistyped_sums_are_named() -> None:
    with pytest.raises(ValidationError, match=r"missing \[\], unknown \['lots'\]"):
        LayerSamples.model_validate(samples(lots=Column.ints([1, 2])))
    with pytest.raises(ValidationError, match="column lost has type f8"):
        LayerSamples.model_validate(samples(lost=Column.floats([1, 2])))


def test_a_histogram_row_needs_all_its_bins() -> None:
    with pytest.raises(ValidationError, match="33 numbers a row are needed"):
        Headroom(
            step=Column.ints([0]),
            layer=Column.ints([0]),
            counts=Column.ints([1] * 32),
            energy=Column.floats([1] * 33),
        )


def test_unknown_fields_are_refused_in_what_is_sent_and_ignored_in_answers() -> None:
    with pytest.raises(ValidationError, match="nmae"):
        RunStart.model_validate({"project": "p", "name": "n", "token": "t", "nmae": "x"})
    newer = {"run_id": "r", "metric": "edq", "steps": [1], "values": ["NaN"], "from_the_future": 1}
    assert math.isnan(Series.model_validate(newer).values[0])  # type: ignore[arg-type]


def test_answers_spell_non_finite_numbers() -> None:
    series = Series(
        run_id="r", metric="edq", steps=[1, 2, 3, 4], values=[math.nan, math.inf, -math.inf, None]
    )
    assert json.loads(series.model_dump_json())["values"] == ["NaN", "Infinity", "-Infinity", None]
