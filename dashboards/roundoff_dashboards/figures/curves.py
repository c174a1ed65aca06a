"""Figures over steps: when it happened. All share one step axis and shade the same alert spans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from roundoff.metrics import STALL_EFFICIENCY
from roundoff.wire import Alert, Series

from .text import escape, non_finite
from .theme import LABEL_SIZE, Theme, ThemeName, axis, base_layout, empty_layout, palette, step_axis

HEIGHT = 176
SETTLED = 0.1
"""Share of a run's steps whose loss may leave the top of the loss figure: the fall from chance level."""


def alert_spans(alerts: Iterable[Alert], last_step: int) -> list[tuple[int, int]]:
    """Step ranges in which a fired alert's condition held, merged where they overlap, in order."""
    spans: list[tuple[int, int]] = []
    raised = [alert for alert in alerts if alert.state != "pending" and alert.fired_step is not None]
    for alert in sorted(raised, key=lambda one: one.since_step):
        end = last_step if alert.resolved_step is None else alert.resolved_step
        if spans and alert.since_step <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((alert.since_step, end))
    return spans


def loss(
    series: Series,
    alerts: Sequence[Alert] = (),
    *,
    theme: ThemeName | Theme = "light",
    last_step: int | None = None,
) -> go.Figure:
    """The loss over steps. Its first steep fall may leave the top, so that what matters later is readable."""
    colors = palette(theme)
    if not series.steps:
        return go.Figure(layout=empty_layout(colors, height=HEIGHT, message="No loss has been logged yet."))
    values = _values(series)
    low, high = _settled_range(np.array(series.steps), values)
    figure = _curve(series, values, alerts, colors, last_step, (low, high), "loss", ".4~g")
    _label_end(figure, series, values, colors, "#.4g")
    return figure


def efficiency(
    series: Series,
    alerts: Sequence[Alert] = (),
    *,
    theme: ThemeName | Theme = "light",
    last_step: int | None = None,
) -> go.Figure:
    """Descent efficiency over steps, against 1 (lossless) and the line below which alerts watch."""
    colors = palette(theme)
    if not series.steps:
        message = "No optimizer step has been measured yet."
        return go.Figure(layout=empty_layout(colors, height=HEIGHT, message=message))
    values = _values(series)
    finite = values[np.isfinite(values)]
    low = min(0.0, float(finite.min())) if finite.size else 0.0
    high = max(1.1, float(finite.max()) * 1.04) if finite.size else 1.1
    figure = _curve(series, values, alerts, colors, last_step, (low, high), "descent efficiency", ".3~g")
    figure.update_yaxes(tickvals=[0, 0.5, 1] if low >= -0.5 and high <= 2 else None)
    _reference(figure, 1.0, "lossless", colors.muted)
    _reference(figure, STALL_EFFICIENCY, f"alert below {STALL_EFFICIENCY:g}", colors.lost)
    _label_end(figure, series, values, colors, ".2f")
    return figure


def _values(series: Series) -> NDArray[np.float64]:
    return np.array(series.values, dtype=np.float64)


def _settled_range(steps: NDArray[Any], values: NDArray[np.float64]) -> tuple[float, float]:
    """The range of the finite values after the first `SETTLED` share of steps, with some air."""
    finite = np.isfinite(values)
    settled = finite & (steps >= steps[0] + SETTLED * (steps[-1] - steps[0]))
    chosen = values[settled] if settled.sum() >= 2 else values[finite]
    if not chosen.size:
        return 0.0, 1.0
    low, high = float(chosen.min()), float(chosen.max())
    air = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    return low - air, high + air


def _curve(
    series: Series,
    values: NDArray[np.float64],
    alerts: Sequence[Alert],
    colors: Theme,
    last_step: int | None,
    limits: tuple[float, float],
    what: str,
    number: str,
) -> go.Figure:
    last = series.steps[-1] if last_step is None else last_step
    when = "step %{x:,d}" if series.bucket <= 1 else f"{series.bucket} steps from %{{x:,d}}"
    name = f"{escape(series.layer)}, " if series.layer else ""
    figure = go.Figure(layout=_layout(series, values, alerts, colors, last, limits, what))
    figure.add_trace(
        go.Scatter(
            x=np.array(series.steps, dtype=np.int32),
            y=np.where(np.isfinite(values), values, np.nan),
            mode="lines" if len(series.steps) > 1 else "markers",
            line={"color": colors.accent, "width": 1.75},
            marker={"color": colors.accent, "size": 5},
            connectgaps=False,
            hovertemplate=f"{name}{when}: {what} %{{y:{number}}}<extra></extra>",
            name=escape(series.metric),
        )
    )
    _mark_non_finite(figure, series, colors, limits[1], f"{name}{when}: {what} is", what)
    return figure


def _layout(
    series: Series,
    values: NDArray[np.float64],
    alerts: Sequence[Alert],
    colors: Theme,
    last: int,
    limits: tuple[float, float],
    what: str,
) -> dict[str, Any]:
    known = values[np.isfinite(values)]
    now = f", {known[0]:.4g} at first and {known[-1]:.4g} at last" if known.size else ""
    spans = alert_spans(alerts, last)
    held = "".join(f" Alert from step {start:,} to {end:,}." for start, end in spans)
    description = f"{what.capitalize()} over steps {series.steps[0]:,} to {series.steps[-1]:,}{now}.{held}"
    margin = {"l": 34, "r": 46, "t": 10, "b": 26}
    layout = base_layout(colors, height=HEIGHT, margin=margin, description=description)
    layout["xaxis"] = step_axis(colors, last)
    layout["yaxis"] = axis(colors) | {
        "range": list(limits),
        "nticks": 5,
        "tickformat": ".4~g",
        "fixedrange": True,
    }
    layout["shapes"] = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": start,
            "x1": end,
            "y0": 0,
            "y1": 1,
            "fillcolor": colors.span,
            "line": {"width": 0},
            "layer": "below",
            "name": "alert",
        }
        for start, end in spans
    ]
    return layout


def _mark_non_finite(
    figure: go.Figure, series: Series, colors: Theme, top: float, sentence: str, what: str
) -> None:
    """A cross at the top edge for every value that is not finite, and in words where the first one is."""
    marked = [
        (step, value)
        for step, value in zip(series.steps, series.values, strict=True)
        if value is not None and not math.isfinite(value)
    ]
    if not marked:
        return
    figure.add_trace(
        go.Scatter(
            x=np.array([step for step, _ in marked], dtype=np.int32),
            y=np.full(len(marked), top),
            text=[non_finite(value) for _, value in marked],
            mode="markers",
            marker={"symbol": "x-thin", "size": 8, "line": {"color": colors.broken, "width": 1.75}},
            cliponaxis=False,
            hovertemplate=f"{sentence} %{{text}}<extra></extra>",
            name="not finite",
        )
    )
    step, value = marked[0]
    figure.add_annotation(
        x=step,
        y=top,
        text=f"{what} {non_finite(value)} at step {step:,}",
        showarrow=False,
        xanchor="right" if step > (series.steps[0] + series.steps[-1]) / 2 else "left",
        yshift=-12,
        font={"size": LABEL_SIZE, "color": colors.broken},
    )


def _reference(figure: go.Figure, value: float, text: str, color: str) -> None:
    figure.add_shape(
        type="line",
        xref="paper",
        x0=0,
        x1=1,
        y0=value,
        y1=value,
        line={"color": color, "width": 1, "dash": "dot"},
    )
    figure.add_annotation(
        xref="paper",
        x=0,
        y=value,
        text=text,
        showarrow=False,
        xanchor="left",
        yanchor="bottom" if value == 1.0 else "top",
        xshift=4,
        font={"size": LABEL_SIZE, "color": color},
    )


def _label_end(
    figure: go.Figure,
    series: Series,
    values: NDArray[np.float64],
    colors: Theme,
    number: str,
) -> None:
    """The last value, written where the line ends."""
    finite = np.flatnonzero(np.isfinite(values))
    if not finite.size:
        return
    index = int(finite[-1])
    value = float(values[index])
    figure.add_annotation(
        x=series.steps[index],
        y=value,
        text=f"{value:{number}}",
        showarrow=False,
        xanchor="left",
        xshift=4,
        font={"size": LABEL_SIZE, "color": colors.accent},
    )
