"""The figures of the page: a study in, Plotly figures out. Usable in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from roundoff.optim import STRATEGIES
from roundoff_dashboards.figures import Theme, ThemeName
from roundoff_dashboards.figures.theme import LABEL_SIZE, axis, base_layout, palette

from .recipe import REFERENCE
from .summary import ARITHMETICS, Row, Study

COLORS: dict[ThemeName, dict[str, str]] = {
    "light": {
        "none": "#b5441f", "light": "#5a9fd4", "plus": "#2f5d8a", "kahan": "#2c7a4b",
        "stochastic": "#b08400", "fp32-state": "#8d5fb0", "fp32-master": "#1f2328", "exact": "#0a9396",
    },
    "dark": {
        "none": "#ee8a5f", "light": "#a9d2f3", "plus": "#5c9bdc", "kahan": "#6cc08f",
        "stochastic": "#dcb54a", "fp32-state": "#c3a1e2", "fp32-master": "#e7e5df", "exact": "#45d0c8",
    },
}  # fmt: skip
"""One colour per strategy and theme; the warm one is the baseline that loses."""

MODES = {"fp32": "float32 arithmetic", "storage": "storage arithmetic"}

TITLES = {
    "descent_efficiency": "descent efficiency",
    "norm_efficiency": "descent efficiency, norm weights",
    "lost_fraction": "lost fraction",
    "edq": "effective descent quality (EDQ)",
}
HEIGHT = 520
EFFICIENCY_RANGE = (-0.1, 1.7)
"""Single steps of stochastic rounding leave it: their updates are all noise once they are small."""


def losses(study: Study, theme: ThemeName = "light") -> go.Figure:
    """Validation loss of every run by strategy, means, and the span of the float32 master's seeds.

    A strategy that lacks some of the master's seeds gets no mean: it would be one of other texts and weights.
    """
    figure = _panels(study, theme, "Final validation loss of every run, by strategy, for each β2.")
    _points(figure, study, theme, [list(row.losses.values()) for row in study.rows], ".4f")
    figure.update_xaxes(tickformat=".2f", nticks=5)
    return figure


def differences(study: Study, theme: ThemeName = "light") -> go.Figure:
    """As `losses`, each run less the float32 master's of the same seed; the span is about the master's mean."""
    figure = _panels(study, theme, "Validation loss less that of the float32 master with the same seed.")
    _points(figure, study, theme, [row.differences for row in study.rows], "+.4f", about_mean=True)
    figure.update_xaxes(tickformat="+.2f", nticks=5)
    return figure


def _points(
    figure: go.Figure,
    study: Study,
    theme: ThemeName,
    values: Sequence[Sequence[float]],
    number: str,
    *,
    about_mean: bool = False,
) -> None:
    """One point per run and a stroke at their mean, a line per strategy; grey where the master's seeds lie."""
    paired = list(zip(study.rows, values, strict=True))
    whole = [(row, some) for row, some in paired if row.losses.keys() == row.reference.keys()]
    traces = [_seeds(row, some, COLORS[theme][row.strategy], number) for row, some in paired]
    traces += [_mean(row, some, COLORS[theme][row.strategy], number) for row, some in whole]
    _place(figure, study, traces, [*study.rows, *(row for row, _ in whole)])
    for row in study.rows:
        if row.strategy == REFERENCE and len(row.losses) > 1:
            span = {"fillcolor": palette(theme).muted, "opacity": 0.16, "line_width": 0, "layer": "below"}
            where = dict(zip(("row", "col"), _panel(study, row), strict=True))
            ends = [
                end - about_mean * row.mean for end in (min(row.losses.values()), max(row.losses.values()))
            ]
            figure.add_vrect(*ends, **span, **where)
    shown = [name for name in STRATEGIES if any(row.strategy == name for row in study.rows)]
    figure.update_yaxes(categoryorder="array", categoryarray=shown[::-1], range=[-0.6, len(shown) - 0.4])
    figure.update_yaxes(matches="y")
    figure.update_xaxes(title={"text": "nats per character", "standoff": 6}, row=len(ARITHMETICS))


def _seeds(row: Row, values: Sequence[float], color: str, number: str) -> go.Scatter:
    symbol = "circle-open" if row.stands_in else "circle"
    return go.Scatter(
        x=list(values),
        y=[row.strategy] * len(values),
        mode="markers",
        marker={"color": color, "size": 7, "symbol": symbol, "opacity": 0.75},
        customdata=list(row.losses),
        hovertemplate=f"{row.strategy}, seed %{{customdata}}: %{{x:{number}}}<extra></extra>",
        showlegend=False,
    )


def _mean(row: Row, values: Sequence[float], color: str, number: str) -> go.Scatter:
    return go.Scatter(
        x=[fmean(values)],
        y=[row.strategy],
        mode="markers",
        marker={"color": color, "size": 16, "symbol": "line-ns-open", "line": {"width": 2.5}},
        hovertemplate=f"{row.strategy}, mean of {len(values)}: %{{x:{number}}}<extra></extra>",
        showlegend=False,
    )


def curves(study: Study, name: str, theme: ThemeName = "light") -> go.Figure:
    """One figure of `summary.FIGURES` over the steps: a panel per β2 and arithmetic."""
    title = TITLES[name]
    figure = _panels(study, theme, f"{title[0].upper()}{title[1:]} over steps, by strategy, for each β2.")
    traces = [_line(row, name, COLORS[theme][row.strategy]) for row in study.rows]
    first = {trace.name: trace for trace in reversed(traces)}
    for trace in first.values():
        trace.showlegend = True
    _place(figure, study, traces, study.rows)
    figure.update_yaxes(matches="y", nticks=6)
    if name.endswith("efficiency"):
        figure.update_yaxes(range=EFFICIENCY_RANGE)
    figure.update_xaxes(tickformat=",d", nticks=5)
    figure.update_xaxes(title={"text": "step", "standoff": 6}, row=len(ARITHMETICS))
    figure.update_layout(
        showlegend=True,
        margin={"t": 72},
        legend={"orientation": "h", "y": 1.16, "x": 0, "yanchor": "top", "itemsizing": "constant"},
    )
    return figure


def _line(row: Row, name: str, color: str) -> go.Scatter:
    return go.Scatter(
        x=row.step,
        y=row.curves[name],
        mode="lines",
        line={"color": color, "width": 1.75, "dash": "dot" if row.stands_in else "solid"},
        name=row.strategy,
        legendgroup=row.strategy,
        showlegend=False,
        connectgaps=False,
        hovertemplate=f"{row.strategy}, step %{{x:,d}}: %{{y:.3~g}}<extra></extra>",
    )


def _place(figure: go.Figure, study: Study, traces: Sequence[go.Scatter], rows: Sequence[Row]) -> None:
    """Add traces, each to the panel of its row."""
    lines, columns = zip(*(_panel(study, row) for row in rows), strict=True)
    figure.add_traces(list(traces), rows=list(lines), cols=list(columns))


def _panel(study: Study, row: Row) -> tuple[int, int]:
    """Line and column of a row's panel, counted from 1."""
    return ARITHMETICS.index(row.arithmetic) + 1, study.betas2.index(row.beta2) + 1


def _panels(study: Study, theme: ThemeName, description: str) -> go.Figure:
    """Empty panels: β2 from left to right, arithmetic from top to bottom."""
    colors = palette(theme)
    figure = make_subplots(
        rows=len(ARITHMETICS),
        cols=len(study.betas2),
        shared_yaxes=True,
        vertical_spacing=0.14,
        horizontal_spacing=0.03,
        subplot_titles=[f"β2 = {beta2}, {MODES[mode]}" for mode in ARITHMETICS for beta2 in study.betas2],
    )
    layout = base_layout(
        colors, height=HEIGHT, margin={"l": 84, "r": 12, "t": 30, "b": 44}, description=description
    )
    figure.update_layout(layout)
    figure.update_annotations(font={"size": LABEL_SIZE, "color": colors.muted})
    figure.update_xaxes(_axis(colors))
    figure.update_yaxes(_axis(colors))
    return figure


def _axis(colors: Theme) -> dict[str, Any]:
    return axis(colors) | {"title": {"font": {"size": LABEL_SIZE, "color": colors.muted}}}
