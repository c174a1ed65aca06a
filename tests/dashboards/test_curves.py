"""The curves, their alert spans and the spark line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from memory_source import MemorySource

from roundoff.wire import Series
from roundoff_dashboards.figures import alert_spans, efficiency, loss, spark
from roundoff_dashboards.figures.theme import THEMES, ThemeName


def series(values: list[float | None], metric: str = "scalar:loss") -> Series:
    """One value every ten steps."""
    return Series(run_id="r", metric=metric, steps=[10 * i for i in range(len(values))], values=values)


def test_loss_and_efficiency_share_the_step_axis(source: MemorySource) -> None:
    run = source.run("bf16")
    drawn = [
        loss(source.series("bf16", "scalar:loss"), last_step=run.step),
        efficiency(source.series("bf16", "descent_efficiency"), last_step=run.step),
    ]
    assert {figure.layout.xaxis.range for figure in drawn} == {(0, 295)}
    assert len({(figure.layout.margin.l, figure.layout.margin.r) for figure in drawn}) == 1
    assert drawn[0].data[0].x.dtype == np.int32


def test_the_alert_span_is_shaded(source: MemorySource) -> None:
    source.alert("bf16", since_step=100, fired_step=120, resolved_step=200)
    figure = efficiency(source.series("bf16", "descent_efficiency"), source.alerts().alerts)
    (span,) = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert (span.x0, span.x1) == (100, 200)
    assert "Alert from step 100 to 200." in figure.layout.meta["description"]


def test_spans_merge_end_at_the_last_step_and_leave_pending_out(source: MemorySource) -> None:
    source.alert("bf16", since_step=250, fired_step=260)
    source.alert("bf16", since_step=100, fired_step=120, resolved_step=200)
    source.alert("bf16", since_step=150, fired_step=160, resolved_step=220)
    source.alert("bf16", since_step=10, fired_step=None, state="pending")
    assert alert_spans(source.alerts().alerts, 295) == [(100, 220), (250, 295)]


def test_none_is_a_gap_and_not_finite_a_mark() -> None:
    figure = loss(series([3.0, None, 2.0, math.nan, math.inf, 1.5]))
    line, marks = figure.data
    assert np.isnan(line.y).tolist() == [False, True, False, True, True, False]
    assert line.connectgaps is False
    assert marks.x.tolist() == [30, 40]
    assert list(marks.text) == ["NaN", "+∞"]
    assert any("loss NaN at step 30" in note.text for note in figure.layout.annotations)


def test_the_first_fall_of_the_loss_does_not_flatten_the_rest() -> None:
    values = [100.0, 40.0, *(3.0 - 0.01 * i for i in range(100))]
    low, high = loss(series(values)).layout.yaxis.range
    assert low < min(values)
    assert high < 4


def test_references_and_last_value_are_written_on_the_figure(source: MemorySource) -> None:
    figure = efficiency(source.series("bf16", "descent_efficiency"))
    notes = [note.text for note in figure.layout.annotations]
    assert "lossless" in notes
    assert "alert below 0.5" in notes
    assert f"{figure.data[0].y[-1]:.2f}" in notes
    dotted = [shape.y0 for shape in figure.layout.shapes if shape.type == "line"]
    assert dotted == [1, 0.5]
    assert figure.layout.yaxis.range[0] == 0


def test_an_efficiency_outside_0_to_1_is_shown() -> None:
    low, high = efficiency(series([-0.4, 1.9], "descent_efficiency")).layout.yaxis.range
    assert low <= -0.4
    assert high >= 1.9


@pytest.mark.parametrize("draw", [loss, efficiency])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_empty_constant_single_and_all_nan_can_be_drawn(draw: object, theme: ThemeName) -> None:
    for values in ([], [2.0], [2.0] * 5, [math.nan] * 3, [None, None]):
        figure = draw(series(values), theme=theme)  # type: ignore[operator]
        assert figure.layout.paper_bgcolor == THEMES[theme].panel
        assert bool(figure.layout.meta.get("empty")) == (not values)
        assert figure.to_json()


def test_spark_breaks_at_none_and_marks_nan() -> None:
    line = spark([1.0, None, 2.0, math.nan])
    assert line.path == "M2 20M63.3 2"
    assert line.end == (63.3, 2.0)
    assert line.marks == (94.0,)
    assert spark([]).path == ""
    assert spark([5.0, 5.0]).path == "M2 11L94 11"
