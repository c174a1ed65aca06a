"""Records become columns without losing a bit."""

from __future__ import annotations

import gzip
import math
import struct

import pytest
from samples import Table, layers, sample

from roundoff.delivery.batches import build_batch, encode
from roundoff.delivery.records import Declared, Logged, array, model_row, rows_of
from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW
from roundoff.wire import Batch


def travelled(*records: object, **changes: object) -> Batch:
    """The batch of some records as the server reads it."""
    settings = {"writer": "w", "seq": 3, "attempt": 2, "rank": 1, "promise_s": 60.0, "dropped": {"x": 1}}
    batch = build_batch(records, **{**settings, **changes})  # type: ignore[arg-type]
    return Batch.model_validate_json(gzip.decompress(encode(batch)))


def test_a_sample_arrives_with_its_model_row() -> None:
    batch = travelled(Declared(layers(2)), rows_of(sample(7), 0.0), rows_of(sample(9), 0.0))
    assert [layer.name for layer in batch.layers] == ["layer.0", "layer.1"]
    assert batch.model is not None
    assert batch.samples is not None
    assert batch.headroom is not None
    assert batch.groups is not None
    assert batch.model.step.values() == [7, 9]
    assert batch.samples.step.values() == [7, 7, 9, 9]
    assert batch.samples.layer.values() == [0, 1, 0, 1]
    for name in ROW:
        each = [1, 2, 1, 2] if name in COUNTS else [0.1, 0.2, 0.1, 0.2]
        assert batch.samples.sums[name].values() == each
        assert batch.model.sums[name].values() == [math.fsum(each[:2])] * 2
    assert batch.headroom.counts.values() == ([0] * HEADROOM_BINS + [1] * HEADROOM_BINS) * 2
    assert batch.headroom.energy.values() == ([0.0] * HEADROOM_BINS + [0.1] * HEADROOM_BINS) * 2
    assert batch.groups.lr.values() == [1e-3, 1e-3]
    assert (batch.writer, batch.seq, batch.attempt, batch.rank, batch.dropped) == ("w", 3, 2, 1, {"x": 1})


def test_shed_details_are_absent_and_the_model_row_stays() -> None:
    whole, bare = rows_of(sample(1), 0.0), rows_of(sample(2), 0.0)
    bare.headroom = bare.sums = None
    batch = travelled(whole, bare)
    assert batch.model is not None
    assert batch.samples is not None
    assert batch.model.step.values() == [1, 2]
    assert batch.samples.step.values() == [1, 1]
    assert travelled(bare).samples is None


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]],
)
def test_every_value_keeps_its_bits(value: float) -> None:
    scalars = travelled(Logged(array("q", [4]), ("a", "b"), array("d", [value, 1.0]), 0.0)).scalars
    assert scalars is not None
    assert scalars.names == ["a", "b"]
    assert scalars.step.values() == [4, 4]
    assert struct.pack("<d", scalars.value.values()[0]) == struct.pack("<d", value)


def test_large_counts_are_exact() -> None:
    row = model_row(sample(0, 3, numel=float(2**51 + 1)).sums.tolist())
    assert int(row[ROW.index("numel")]) == 3 * (2**51 + 1)


def test_sums_of_infinities_are_what_addition_gives() -> None:
    rows = [[0.0] * len(ROW), [0.0] * len(ROW)]
    index = ROW.index("sum_uu")
    rows[0][index], rows[1][index] = math.inf, -math.inf
    assert math.isnan(model_row(rows)[index])
    rows[1][index] = 1.0
    assert model_row(rows)[index] == math.inf


def test_a_sample_whose_rows_do_not_fit_is_refused() -> None:
    wrong = sample(0)
    object.__setattr__(wrong, "sums", Table(wrong.sums.tolist()[:1]))
    with pytest.raises(ValueError, match="2 layers has 1 rows"):
        rows_of(wrong, 0.0)


def test_a_heartbeat_is_an_empty_batch() -> None:
    batch = travelled(end="finished")
    assert batch.model is batch.samples is batch.headroom is batch.groups is batch.scalars is None
    assert batch.end == "finished"
