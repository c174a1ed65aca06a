"""The heatmap figure: colours, gaps, marks, labels and sentences."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
import pytest
from memory_source import MemorySource

from roundoff.wire import Heatmap
from roundoff_dashboards.figures import THEMES, heatmap


def small(values: list[list[float | None]], metric: str = "lost_fraction", **fields: object) -> Heatmap:
    """A heatmap with one layer a row and a step every ten."""
    names = [f"blocks.{row}.weight" for row in range(len(values))]
    answer = {"layers": names, "steps": [10 * column for column in range(len(values[0]))], "values": values}
    return Heatmap.model_validate({"run_id": "r", "metric": metric} | answer | fields)


def cells(figure: go.Figure) -> list[go.Heatmap]:
    """The heatmap traces: the values first, then one for each kind of non-finite value."""
    return [trace for trace in figure.data if isinstance(trace, go.Heatmap)]


def test_rows_are_layers_worst_first_in_per_cent(source: MemorySource) -> None:
    data = source.heatmap("bf16", "lost_fraction")
    figure = heatmap(data)
    (trace,) = cells(figure)
    assert trace.z.shape == (len(data.layers), len(data.steps))
    assert trace.z.dtype == np.float32
    assert trace.z[0, -1] == pytest.approx(100 * data.values[0][-1], rel=1e-6)
    assert (trace.zmin, trace.zmax) == (0, 100)
    assert list(figure.layout.yaxis2.ticktext) == data.layers
    low, high = figure.layout.yaxis.range
    assert low > high, "the first layer is on top"


def test_an_undefined_value_is_a_gap_and_a_non_finite_one_a_mark() -> None:
    figure = heatmap(small([[0.5, None, math.nan], [math.inf, 0.25, -math.inf]]))
    values, *marks = cells(figure)
    assert np.isnan(values.z).tolist() == [[False, True, True], [True, False, True]]
    assert {mark.name: np.argwhere(np.isfinite(mark.z)).tolist() for mark in marks} == {
        "NaN": [[0, 2]],
        "+∞": [[1, 0]],
        "−∞": [[1, 2]],
    }
    assert "NaN" in marks[0].hovertemplate
    assert figure.layout.annotations[0].text == "■ 3 cells not finite"
    assert values.hoverongaps is False


def test_one_sentence_for_every_metric() -> None:
    said = {
        metric: cells(heatmap(small([[0.5]], metric)))[0].hovertemplate
        for metric in ("lost_fraction", "descent_efficiency", "invisible_fraction", "v_stuck_fraction")
    }
    assert said["lost_fraction"] == "%{y}, step %{x:,d}: %{z:.3~g} % of updates lost<extra></extra>"
    assert "1 is lossless" in said["descent_efficiency"]
    assert "forward pass" in said["invisible_fraction"]
    assert "second moment" in said["v_stuck_fraction"]
    bucketed = cells(heatmap(small([[0.5]], bucket=20, sampled=True)))[0].hovertemplate
    assert "20 steps from %{x:,d}" in bucketed


def test_warm_means_lost_and_a_low_efficiency_is_dark() -> None:
    warm, cool = THEMES["light"].warm, THEMES["light"].cool
    scales = {
        metric: cells(heatmap(small([[0.5]], metric)))[0]
        for metric in ("lost_fraction", "descent_efficiency", "invisible_fraction")
    }
    assert [color for _, color in scales["lost_fraction"].colorscale] == list(warm)
    assert not scales["lost_fraction"].reversescale
    assert [color for _, color in scales["descent_efficiency"].colorscale] == list(warm)
    assert scales["descent_efficiency"].reversescale is True
    assert [color for _, color in scales["invisible_fraction"].colorscale] == list(cool)


HOSTILE = ["<b>bold</b>", "<a href='javascript:alert(1)'>x</a>", "a & b &lt; c", "%{z} $x$", "line\nbreak"]


def test_hostile_names_cannot_mark_up() -> None:
    figure = heatmap(small([[0.5]] * len(HOSTILE), layers=HOSTILE))
    for axis in (figure.layout.yaxis, figure.layout.yaxis2):
        text = "".join(axis.ticktext)
        assert not set("<>$%\n") & set(text)
        assert "&amp;lt;" in text
    names = heatmap(small([[0.5]], "descent_efficiency", layers=["%{x}"])).layout.yaxis2.ticktext
    assert names == ("&#37;{x}",)


def test_equal_short_labels_do_not_merge_rows() -> None:
    names = [f"{prefix}{'x' * 40}.weight" for prefix in "abc"]
    figure = heatmap(small([[0.1], [0.2], [0.3]], layers=names), label_length=19)
    assert set(figure.layout.yaxis.ticktext) == {"…weight"}
    assert list(figure.layout.yaxis2.ticktext) == names
    assert cells(figure)[0].z.shape == (3, 1)


def test_many_layers_stay_on_a_screen_and_labels_thin_out() -> None:
    figure = heatmap(small([[0.5]] * 200))
    assert figure.layout.height < 950
    assert len(figure.layout.yaxis.ticktext) < 100
    assert len(figure.layout.yaxis2.ticktext) == 200


def test_no_data_is_said_in_words() -> None:
    empty = Heatmap(run_id="r", metric="lost_fraction", layers=[], steps=[], values=[])
    figure = heatmap(empty)
    assert not figure.data
    assert figure.layout.meta["empty"] == "No layer has been measured yet."


def test_arrays_travel_typed(source: MemorySource) -> None:
    figure = heatmap(source.heatmap("bf16", "lost_fraction")).to_dict()
    assert figure["data"][0]["z"]["dtype"] == "f4"
    assert figure["data"][0]["x"]["dtype"] == "i4"
