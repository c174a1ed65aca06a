"""Sums add, and every ratio is what its definition says."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

from roundoff import metrics
from roundoff.metrics import COUNTS, HEADROOM_BINS, METRICS, SUMS, Sums

ONE = Sums(
    numel=10, attempted=8, lost=6, invisible=7, unchanged=9, decay_attempted=4, decay_lost=1, v_attempted=5,
    v_stuck=2, sum_uu=4.0, sum_ua=1.0, sum_aa=2.0, sum_us=0.5, sum_ss=3.0, sum_ww=16.0,
    headroom=(1,) * HEADROOM_BINS,
)  # fmt: skip


def test_the_figures_of_one_row() -> None:
    assert metrics.lost_fraction(ONE) == 0.75
    assert metrics.invisible_fraction(ONE) == 0.875
    assert metrics.edq(ONE) == 0.5
    assert metrics.descent_efficiency(ONE) == 0.25
    assert metrics.seen_efficiency(ONE) == 0.125
    assert metrics.imprecision(ONE) == 0.9
    assert metrics.update_ratio(ONE) == 0.5
    assert metrics.update_norm(ONE) == 2.0
    assert metrics.decay_lost_fraction(ONE) == 0.25
    assert metrics.v_stuck_fraction(ONE) == 0.4
    assert metrics.effective_lr(ONE, 1e-3) == 2.5e-4


def test_nothing_attempted_is_undefined_and_not_zero() -> None:
    empty = Sums(numel=10)
    for name in ("lost_fraction", "invisible_fraction", "edq", "descent_efficiency", "update_ratio"):
        assert getattr(metrics, name)(empty) is None, name
    assert metrics.effective_lr(empty, 1e-3) is None
    assert metrics.effective_lr(ONE, None) is None
    assert metrics.update_norm(empty) == 0.0


@pytest.mark.parametrize("name", METRICS)
def test_columns_give_what_rows_give(name: str) -> None:
    rows = [ONE, Sums(numel=3), ONE + ONE, Sums(numel=5, attempted=5, sum_uu=1e-300, sum_ww=1.0)]

    class Columns:
        pass

    columns = Columns()
    for field in (*COUNTS, *SUMS):
        setattr(columns, field, np.array([getattr(row, field) for row in rows]))
    figure = METRICS[name].figure
    expected = [figure(row) for row in rows]
    got = figure(columns)
    assert got.dtype == np.float64
    assert [None if math.isnan(x) else x for x in got] == expected


def test_every_field_adds() -> None:
    total = sum([ONE, ONE, Sums()])
    for field in fields(Sums):
        value, doubled = getattr(ONE, field.name), getattr(total, field.name)
        assert doubled == (tuple(2 * x for x in value) if isinstance(value, tuple) else 2 * value), field.name
    with pytest.raises(TypeError):
        ONE + 1  # type: ignore[operator]


def test_every_metric_has_a_label_and_a_sentence() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.label
        assert metric.sentence.endswith(".")
        assert metric.worst in (None, "high", "low")


def test_neither_metrics_nor_the_wire_needs_torch_or_numpy() -> None:
    code = "import sys, roundoff.metrics, roundoff.wire; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
