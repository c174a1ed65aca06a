"""The page and its data, written from finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from roundoff_dashboards.figures import THEMES

from .figures import MODES, TITLES, curves, differences, losses
from .recipe import Recipe
from .results import Result
from .summary import Study, summarise
from .tables import HEAD, markdown, progress, tables

TEMPLATE = Path(__file__).parent / "page.html"
DATA, PAGE = "results.json", "index.html"

CAPTIONS = {
    "losses": (
        "Validation loss",
        "Every run, and as a stroke the mean of each strategy that has all the seeds. Grey: what the seeds of the "
        "float32 master span. Open circles stand in for a mode that the strategy has not.",
    ),
    "differences": (
        "Validation loss against the float32 master's",
        "The same, each run less the master's with the same seed, which had the same weights and batches. Grey: the "
        "master's seeds about their mean.",
    ),
    "descent_efficiency": (
        "Descent efficiency",
        "Share of the intended descent that is stored, whole model: 1 is lossless. Mean of the seeds that all "
        "strategies have; dotted where the run in float32 arithmetic stands in. Single steps of stochastic rounding "
        "may leave the figure.",
    ),
    "norm_efficiency": (
        "Descent efficiency of the norms' weights",
        "They start at 1, where bfloat16 is coarsest against a step. A few hundred elements: one step of stochastic "
        "rounding is noise around 1.",
    ),
    "lost_fraction": (
        "Lost fraction",
        "Share of the element updates after which nothing that is stored has changed. Small updates are lost first, "
        "so this is not the damage.",
    ),
    "edq": (
        "Effective descent quality",
        "The paper's own figure: descent efficiency times the norm of the update.",
    ),
}


def write_report(folder: Path, recipe: Recipe, results: Sequence[Result], wanted: int) -> str:
    """Write the data and the page into `folder`; returns the tables in Markdown.

    `wanted` is how many runs the grid has. Without a single result the page is drawn again from the data that
    lie there. Raises FileNotFoundError without those either.
    """
    if results:
        study = summarise(recipe, results, wanted, datetime.now(UTC).date())
    else:
        study = Study.model_validate_json((folder / DATA).read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA).write_text(study.model_dump_json() + "\n", encoding="utf-8")
    (folder / PAGE).write_text(render(study), encoding="utf-8")
    return markdown(study)


def render(study: Study) -> str:
    """The page as HTML that needs nothing else: Plotly and the figures in both themes are in it."""
    return Template(TEMPLATE.read_text("utf-8")).substitute(
        progress=escape(progress(study)),
        made=study.made.isoformat(),
        sections="\n".join([_figure("losses"), _figure("differences"), _table(study), *map(_figure, TITLES)]),
        plotly=get_plotlyjs(),
        figures=json.dumps(_figures(study)).replace("</", "<\\/"),
    )


def _figures(study: Study) -> dict[str, dict[str, object]]:
    """Every figure as Plotly's JSON, by name and theme."""
    return {
        "losses": {theme: _json(losses(study, theme)) for theme in THEMES},
        "differences": {theme: _json(differences(study, theme)) for theme in THEMES},
        **{name: {theme: _json(curves(study, name, theme)) for theme in THEMES} for name in TITLES},
    }


def _json(figure: go.Figure) -> object:
    return json.loads(figure.to_json())


def _figure(name: str) -> str:
    title, caption = CAPTIONS[name]
    return (
        f'<h2>{escape(title)}</h2><figure class="panel" style="margin-inline:0">'
        f'<div class="figure" role="img" data-figure="{name}"></div><figcaption>{escape(caption)}</figcaption></figure>'
    )


def _table(study: Study) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in HEAD)
    parts = []
    for mode, label in MODES.items():
        body = ""
        for beta2, rows in tables(study, mode):
            body += f'<tr class="beta"><th colspan="{len(HEAD)}">β2 = {beta2}</th></tr>'
            body += "".join(map(_line, rows))
        parts.append(
            f'<h3>{escape(label.capitalize())}</h3><div class="panel"><table><tr>{head}</tr>{body}</table></div>'
        )
    return "".join(parts)


def _line(cells: Sequence[str]) -> str:
    *others, verdict = (escape(cell) for cell in cells)
    return f'<tr>{"".join(f"<td>{cell}</td>" for cell in others)}<td class="{verdict}">{verdict}</td></tr>'
