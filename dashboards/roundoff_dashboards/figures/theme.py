"""Colours, type and the common layout of every figure, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ThemeName = Literal["light", "dark"]

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
TICK_SIZE = 11
LABEL_SIZE = 11


@dataclass(frozen=True, slots=True)
class Theme:
    """One palette. `warm` means lost and nothing else; `cool` is for what is never a fault.

    Both ramps run from nothing to everything, monotone in lightness. `lost` is the alert tone for text and
    lines, `broken` the tone for values that are not finite.
    """

    name: ThemeName
    paper: str
    panel: str
    ink: str
    muted: str
    line: str
    accent: str
    lost: str
    broken: str
    span: str
    warm: tuple[str, ...]
    cool: tuple[str, ...]


THEMES: dict[ThemeName, Theme] = {
    "light": Theme(
        name="light",
        paper="#faf9f6",
        panel="#ffffff",
        ink="#1f2328",
        muted="#646b78",
        line="#e6e3dc",
        accent="#2f5d8a",
        lost="#b5441f",
        broken="#7d3c98",
        span="rgba(201, 83, 47, 0.09)",
        warm=("#f3f1ec", "#f7dcb0", "#eca35c", "#c9532f", "#7c1d23"),
        cool=("#f0f2f3", "#cbdde8", "#86b2d1", "#3f7aa8", "#173f66"),
    ),
    "dark": Theme(
        name="dark",
        paper="#14161a",
        panel="#1b1e24",
        ink="#e7e5df",
        muted="#98a0ab",
        line="#2b3038",
        accent="#7fb2e5",
        lost="#ee8a5f",
        broken="#c89be0",
        span="rgba(223, 116, 64, 0.11)",
        warm=("#20242b", "#5a4630", "#a8672f", "#df7440", "#ffb59a"),
        cool=("#20242b", "#2b4256", "#3c6a92", "#659fd2", "#bcdcfb"),
    ),
}


def palette(theme: ThemeName | Theme) -> Theme:
    """The palette of that name; a `Theme` passes through."""
    return theme if isinstance(theme, Theme) else THEMES[theme]


def color_scale(colors: tuple[str, ...]) -> list[tuple[float, str]]:
    """Evenly spaced colours as Plotly wants a scale."""
    return [(index / (len(colors) - 1), color) for index, color in enumerate(colors)]


def step_axis(theme: Theme, last_step: int) -> dict[str, Any]:
    """The horizontal axis that all figures of a run share: optimizer steps from 0 to `last_step`."""
    return axis(theme) | {"range": [0, max(last_step, 1)], "tickformat": ",d", "nticks": 7, "minallowed": 0}


def axis(theme: Theme) -> dict[str, Any]:
    """An axis with a faint grid, no frame and no zero line."""
    return {
        "gridcolor": theme.line,
        "gridwidth": 1,
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "ticklabelstandoff": 4,
        "tickfont": {"size": TICK_SIZE, "color": theme.muted},
        "automargin": False,
    }


def base_layout(theme: Theme, *, height: int, margin: dict[str, int], description: str) -> dict[str, Any]:
    """The layout that every figure starts from.

    `meta.description` says in words what the figure shows, for whoever cannot see it. `uirevision` is
    constant so that a redraw with new data keeps what the reader has done to the figure.
    """
    return {
        "template": {},
        "height": height,
        "margin": margin,
        "autosize": True,
        "paper_bgcolor": theme.panel,
        "plot_bgcolor": theme.panel,
        "font": {"family": FONT, "size": TICK_SIZE, "color": theme.ink},
        "showlegend": False,
        "hovermode": "closest",
        "hoverdistance": -1,
        "hoverlabel": {
            "bgcolor": theme.ink,
            "bordercolor": theme.ink,
            "font": {"family": FONT, "size": 12, "color": theme.panel},
            "align": "left",
            "namelength": -1,
        },
        "dragmode": "zoom",
        "uirevision": "steps",
        "meta": {"description": description},
    }


def empty_layout(theme: Theme, *, height: int, message: str) -> dict[str, Any]:
    """The layout of a figure without data: the message in its middle, and as `meta.empty` for pages."""
    layout = base_layout(theme, height=height, margin={"l": 0, "r": 0, "t": 0, "b": 0}, description=message)
    hidden = {"visible": False}
    note = {"text": message, "showarrow": False, "font": {"color": theme.muted, "size": 12}}
    placed = note | {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    meta = {"description": message, "empty": message}
    return layout | {"xaxis": hidden, "yaxis": hidden, "annotations": [placed], "meta": meta}
