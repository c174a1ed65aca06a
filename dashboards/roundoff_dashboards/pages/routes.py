"""Every page, and the parts of pages that stay live. Thin: read, draw, answer."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import plotly.graph_objects as go
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from roundoff.metrics import cure
from roundoff.wire import Alert, RunSummary, Series
from roundoff_dashboards import figures
from roundoff_dashboards.figures import ThemeName
from roundoff_dashboards.source import Source

from .formats import trouble
from .views import STATIC as STATIC, conditional, firing, not_found_page, render

HEATMAP_METRICS = {
    "lost": "lost_fraction",
    "efficiency": "descent_efficiency",
    "invisible": "invisible_fraction",
    "moment": "v_stuck_fraction",
}
"""The views of the heatmap by their name in the address."""

HEATMAP_LABELS = {
    "lost": "Lost",
    "efficiency": "Efficiency",
    "invisible": "Invisible",
    "moment": "2nd moment",
}

HEATMAP_ROWS = 200
RUNS_PER_PAGE = 50

MetricName = Literal["lost", "efficiency", "invisible", "moment"]
FigureName = Literal["heatmap", "loss", "efficiency"]


def create_pages(source: Source) -> APIRouter:
    """The router with all pages over `source`; static files are served apart, from `STATIC` at `/static`."""
    router = APIRouter(include_in_schema=False)
    _add_run_list(router, source)
    _add_run_page(router, source)
    _add_figures(router, source)
    _add_alerts(router, source)
    return router


def _add_run_list(router: APIRouter, source: Source) -> None:
    def listing(request: Request, template: str, q: str, project: str, state: str, cursor: str) -> Response:
        page = source.runs(
            project=project or None,
            state=state or None,
            q=q or None,
            limit=RUNS_PER_PAGE,
            cursor=cursor or None,
        )
        tone, word, sentence = trouble(page.runs)
        return render(
            request,
            template,
            runs=page.runs,
            next_cursor=page.next_cursor,
            tone=tone,
            word=word,
            sentence=sentence,
            filters={"q": q, "project": project, "state": state},
            filtered=bool(q or project or state or cursor),
            projects=sorted({run.project for run in page.runs} | ({project} if project else set())),
            firing=firing(source),
            here="runs",
        )

    @router.get("/")
    def runs(request: Request, q: str = "", project: str = "", state: str = "", cursor: str = "") -> Response:
        return listing(request, "runs.html", q, project, state, cursor)

    @router.get("/runs.html")
    def runs_part(
        request: Request, q: str = "", project: str = "", state: str = "", cursor: str = ""
    ) -> Response:
        return listing(request, "runs_part.html", q, project, state, cursor)


def _add_run_page(router: APIRouter, source: Source) -> None:
    def show(request: Request, template: str, run_id: str, metric: str) -> Response:
        try:
            run = source.run(run_id)
        except LookupError:
            return not_found_page(request, source, "No run has this id. It may have been deleted.")
        alerts = source.alerts(run_id=run_id).alerts
        return render(
            request,
            template,
            run=run,
            alerts=alerts,
            cure=cure(run.strategy.split("+")) if run.health == "stalling" else None,
            metric=metric,
            metrics=HEATMAP_LABELS,
            rows=min(HEATMAP_ROWS, run.layers),
            config=json.dumps(run.config, indent=2, ensure_ascii=False, sort_keys=True) if run.config else "",
            firing=firing(source),
            here="run",
        )

    @router.get("/runs/{run_id}")
    def run_page(request: Request, run_id: str, metric: str = "lost") -> Response:
        return show(request, "run.html", run_id, metric if metric in HEATMAP_METRICS else "lost")

    @router.get("/runs/{run_id}/summary.html")
    def run_part(request: Request, run_id: str) -> Response:
        return show(request, "run_part.html", run_id, "lost")


def _add_figures(router: APIRouter, source: Source) -> None:
    @router.get("/runs/{run_id}/figures/{name}.json")
    def figure(
        request: Request,
        run_id: str,
        name: FigureName,
        metric: MetricName = "lost",
        theme: ThemeName = "light",
        labels: Annotated[int, Query(ge=8, le=120)] = 40,
    ) -> Response:
        try:
            run = source.run(run_id)
            drawn = _draw(source, run, name, HEATMAP_METRICS[metric], theme, labels)
        except LookupError as error:
            problem = {"type": "about:blank", "title": "Not found", "status": 404, "detail": str(error)}
            return JSONResponse(problem, 404, media_type="application/problem+json")
        return conditional(request, str(drawn.to_json()).encode(), "application/json")


def _draw(
    source: Source, run: RunSummary, name: FigureName, metric: str, theme: ThemeName, labels: int
) -> go.Figure:
    shared: dict[str, Any] = {"theme": theme, "last_step": run.step}
    if name == "heatmap":
        data = source.heatmap(run.id, metric, max_layers=HEATMAP_ROWS)
        return figures.heatmap(data, label_length=labels, **shared)
    alerts: list[Alert] = source.alerts(run_id=run.id).alerts
    if name == "efficiency":
        return figures.efficiency(source.series(run.id, "descent_efficiency"), alerts, **shared)
    return figures.loss(_logged(source, run.id, "loss"), alerts, **shared)


def _logged(source: Source, run_id: str, name: str) -> Series:
    """A scalar's series; without points if the run never logged it."""
    try:
        return source.series(run_id, f"scalar:{name}")
    except LookupError:
        return Series(run_id=run_id, metric=f"scalar:{name}", steps=[], values=[])


def _add_alerts(router: APIRouter, source: Source) -> None:
    def listing(request: Request, template: str, cursor: str) -> Response:
        page = source.alerts(cursor=cursor or None)
        return render(
            request,
            template,
            alerts=page.alerts,
            next_cursor=page.next_cursor,
            first_page=not cursor,
            firing=firing(source),
            here="alerts",
        )

    @router.get("/alerts")
    def alerts(request: Request, cursor: str = "") -> Response:
        return listing(request, "alerts.html", cursor)

    @router.get("/alerts.html")
    def alerts_part(request: Request, cursor: str = "") -> Response:
        return listing(request, "alerts_part.html", cursor)
