"""Layers × steps: where in the model updates are lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from roundoff.metrics import METRICS, Metric
from roundoff.wire import Heatmap

from .text import escape, non_finite, shorten
from .theme import (
    LABEL_SIZE,
    Theme,
    ThemeName,
    axis,
    base_layout,
    color_scale,
    empty_layout,
    palette,
    step_axis,
)

ROW_HEIGHTS = (4.0, 12.0, 22.0)
"""Pixels of a layer's row: with very many layers, as a rule, and with so few that there is room."""

ROOMY, CROWDED = 480, 860
"""Pixels that all rows share: with few layers, and with many."""

MARGIN_RIGHT = 18

CHARACTER = 5.9
"""Mean width of a character of a row label in pixels, at `LABEL_SIZE`."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How one metric reads in the hover sentence, and the range its colours span."""

    sentence: str
    low: float
    high: float
    ticks: tuple[float, ...]
    suffix: str = ""
    scale: float = 1.0


_PERCENT: dict[str, str] = {
    "lost_fraction": "%{z:.3~g} % of updates lost",
    "invisible_fraction": "%{z:.3~g} % of updates not yet visible to the forward pass",
    "v_stuck_fraction": "%{z:.3~g} % of the second moment stuck",
    "decay_lost_fraction": "%{z:.3~g} % of the weight decay lost",
    "imprecision": "%{z:.3~g} % of the weights unchanged",
}


def heatmap(
    data: Heatmap,
    *,
    theme: ThemeName | Theme = "light",
    last_step: int | None = None,
    label_length: int = 40,
) -> go.Figure:
    """Rows are layers in the order of `data`, columns its step buckets; colour is the metric.

    An undefined value (None) is a gap, one that is not finite a cell in a colour of its own. `last_step`
    ends the step axis, by default at the data's end. Row labels are cut to `label_length` characters; the
    hover sentence has the whole name.
    """
    colors = palette(theme)
    if not data.layers or not data.steps:
        return go.Figure(layout=empty_layout(colors, height=240, message="No layer has been measured yet."))
    metric = METRICS.get(data.metric)
    reading = _reading(data, metric)
    values = np.array(data.values, dtype=np.float64) * reading.scale
    steps = np.array(data.steps, dtype=np.int32)
    row_height = _row_height(len(data.layers))
    last = int(steps[-1]) if last_step is None else last_step
    figure = go.Figure(
        layout=_layout(
            data,
            colors,
            metric,
            row_height=row_height,
            last_step=last,
            label_length=label_length,
            values=values,
        )
    )
    when = "step %{x:,d}" if data.bucket <= 1 else f"{data.bucket} steps from %{{x:,d}}"
    cells = {
        "x": steps,
        "xaxis": "x",
        "yaxis": "y2",
        "hoverongaps": False,
        "ygap": 1 if row_height > 6 else 0,
    }
    figure.add_trace(
        go.Heatmap(
            cells,
            z=np.where(np.isfinite(values), values, np.nan).astype(np.float32),
            zmin=reading.low,
            zmax=reading.high,
            colorscale=color_scale(_ramp(metric, colors)),
            reversescale=metric is not None and metric.worst == "low",
            colorbar=_color_bar(colors, reading),
            hovertemplate=f"%{{y}}, {when}: {reading.sentence}<extra></extra>",
            name=data.metric,
        )
    )
    for sign in (math.nan, math.inf, -math.inf):
        _add_marks(figure, values, sign, cells, f"%{{y}}, {when}: {non_finite(sign)}", colors, _missing(data))
    # The visible row labels belong to an axis of their own, which needs a trace to exist.
    figure.add_trace(go.Scatter(x=[None], y=[None], yaxis="y", hoverinfo="skip"))
    return figure


def _row_height(rows: int) -> float:
    least, usual, most = ROW_HEIGHTS
    if rows * usual <= ROOMY:
        return min(most, ROOMY / rows)
    return max(least, min(usual, CROWDED / rows))


def _missing(data: Heatmap) -> NDArray[np.bool_]:
    return np.array([[value is None for value in row] for row in data.values], dtype=bool)


def _reading(data: Heatmap, metric: Metric | None) -> _Reading:
    if metric is not None and metric.percent:
        sentence = _PERCENT.get(metric.name, f"{metric.label.lower()} %{{z:.3~g}} %")
        return _Reading(sentence, 0.0, 100.0, (0, 50, 100), " %", 100.0)
    if data.metric in ("descent_efficiency", "seen_efficiency"):
        label = "descent" if data.metric == "descent_efficiency" else "seen"
        return _Reading(f"{label} efficiency %{{z:.3~g}} (1 is lossless)", 0.0, 1.0, (0, 0.5, 1))
    finite = [v for row in data.values for v in row if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    label = metric.label.lower() if metric else escape(data.metric)
    return _Reading(f"{label} %{{z:.3~g}}", low, high if high > low else low + 1.0, (low, high))


def _ramp(metric: Metric | None, colors: Theme) -> tuple[str, ...]:
    return colors.warm if metric is not None and metric.worst is not None else colors.cool


def _color_bar(colors: Theme, reading: _Reading) -> dict[str, Any]:
    return {
        "orientation": "h",
        "x": 1.0,
        "xanchor": "right",
        "xpad": 0,
        "y": 1.0,
        "yref": "container",
        "yanchor": "top",
        "ypad": 2,
        "len": 168,
        "lenmode": "pixels",
        "thickness": 7,
        "outlinewidth": 0,
        "ticks": "",
        "tickvals": list(reading.ticks),
        "ticktext": [f"{tick:.3g}{reading.suffix}" for tick in reading.ticks],
        "tickfont": {"size": 10, "color": colors.muted},
    }


def _add_marks(
    figure: go.Figure,
    values: NDArray[np.float64],
    kind: float,
    cells: dict[str, Any],
    sentence: str,
    colors: Theme,
    missing: NDArray[np.bool_],
) -> None:
    """Cells that hold `kind`, one of NaN, +∞ and −∞, in the colour of what is not finite."""
    found = np.isnan(values) & ~missing if math.isnan(kind) else values == kind
    if not found.any():
        return
    figure.add_trace(
        go.Heatmap(
            cells,
            z=np.where(found, 1.0, np.nan).astype(np.float32),
            colorscale=[(0, colors.broken), (1, colors.broken)],
            showscale=False,
            hovertemplate=f"{sentence}<extra></extra>",
            name=non_finite(kind),
        )
    )


def _layout(
    data: Heatmap,
    colors: Theme,
    metric: Metric | None,
    *,
    row_height: float,
    last_step: int,
    label_length: int,
    values: NDArray[np.float64],
) -> dict[str, Any]:
    rows = len(data.layers)
    longest = min(label_length, max(len(name) for name in data.layers))
    margin = {"l": round(CHARACTER * longest) + 8, "r": MARGIN_RIGHT, "t": 30, "b": 26}
    height = round(rows * row_height) + margin["t"] + margin["b"]
    every = math.ceil(LABEL_SIZE / row_height)
    label = metric.label if metric else data.metric
    description = (
        f"{label} of {rows} layers over steps {data.steps[0]:,} to {data.steps[-1]:,}, worst first: "
        f"{', '.join(shorten(name, 60) for name in data.layers[:3])}."
    )
    layout = base_layout(colors, height=height, margin=margin, description=description)
    rows_axis = axis(colors) | {"range": [rows - 0.5, -0.5], "showgrid": False}
    shown = range(0, rows, every)
    layout["xaxis"] = step_axis(colors, last_step) | {"showgrid": False}
    layout["yaxis"] = rows_axis | {
        "tickvals": list(shown),
        "ticktext": [escape(shorten(data.layers[row], label_length)) for row in shown],
        "tickfont": {"size": LABEL_SIZE - 1, "color": colors.muted},
    }
    layout["yaxis2"] = rows_axis | {
        "overlaying": "y",
        "matches": "y",
        "showticklabels": False,
        "tickvals": list(range(rows)),
        "ticktext": [escape(name) for name in data.layers],
    }
    layout["annotations"] = _notes(values, data, colors)
    return layout


def _notes(values: NDArray[np.float64], data: Heatmap, colors: Theme) -> list[dict[str, Any]]:
    count = int((~np.isfinite(values) & ~_missing(data)).sum())
    if not count:
        return []
    text = f"■ {count:,} cell{'s' if count > 1 else ''} not finite"
    place = {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 8,
    }
    return [place | {"text": text, "showarrow": False, "font": {"color": colors.broken, "size": LABEL_SIZE}}]
