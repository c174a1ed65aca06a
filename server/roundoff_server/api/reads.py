"""Routes that read: runs, layers, series, heatmap, alerts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from roundoff.wire import (
    Advised,
    AlertPage,
    AlertState,
    Comparison,
    Finding,
    Forecast,
    HeadroomHistory,
    Heatmap,
    LayerHealth,
    Problem,
    RunPage,
    RunState,
    RunSummary,
    Series,
)
from roundoff.wire.ingest import NO_NUL

from ..services.orders import SORTS
from .answers import answer
from .context import Service
from .ingest import known_id

MAX_STEP = 2**53

Limit = Annotated[int, Query(ge=1, le=500, description="Rows in one page.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")]
StepBound = Annotated[int | None, Query(ge=0, le=MAX_STEP)]
Name = Annotated[str | None, Query(max_length=1024, json_schema_extra={"pattern": NO_NUL})]
Metric = Annotated[
    str,
    Query(
        min_length=1,
        max_length=1100,
        description="A derived figure, `lr`, `effective_lr` or `scalar:NAME`.",
        json_schema_extra={"pattern": NO_NUL},
    ),
]

Sort = Annotated[str, Query(max_length=20, json_schema_extra={"enum": [*SORTS]})]

REFUSALS: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "No such run, layer or metric."},
    422: {"model": Problem, "description": "Bad input; `errors` names the field."},
}


def _unless_known(
    request: Request, version: str, read: Callable[[], BaseModel | Sequence[BaseModel]]
) -> Response:
    """The answer with its version as ETag; 304 without one for a client that has it already."""
    headers = {"ETag": f'W/"{version}"', "Cache-Control": "private, no-cache"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    found = answer(read())
    found.headers.update(headers)
    return found


def add_reads(router: APIRouter, service: Service) -> None:
    """The routes under `/runs` and `/alerts`."""
    source = service.query

    @router.get("/runs", response_model=RunPage, responses={422: REFUSALS[422]}, tags=["runs"])
    def runs(
        project: Name = None,
        state: RunState | None = None,
        q: Name = None,
        tag: Name = None,
        sort: Sort = "newest",
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """Runs; `q` searches project, name and id. `efficiency` puts those that stall or are broken first."""
        return answer(
            source.runs(project=project, state=state, q=q, tag=tag, sort=sort, limit=limit, cursor=cursor)
        )

    @router.get("/runs/{run_id}", response_model=RunSummary, responses=REFUSALS, tags=["runs"])
    def run(run_id: str) -> Response:
        """One run as it stands."""
        return answer(source.run(known_id(run_id)))

    @router.get("/runs/{run_id}/layers", response_model=list[LayerHealth], responses=REFUSALS, tags=["runs"])
    def layers(run_id: str, request: Request) -> Response:
        """The layers of a run in model order."""
        return _unless_known(request, source.version(known_id(run_id)), lambda: source.layers(run_id))

    @router.get("/runs/{run_id}/series", response_model=Series, responses=REFUSALS, tags=["history"])
    def series(
        run_id: str,
        request: Request,
        metric: Metric,
        layer: Name = None,
        from_step: StepBound = None,
        to_step: StepBound = None,
        max_points: Annotated[int, Query(ge=1, le=20_000)] = 2000,
        attempt: Annotated[
            int | None, Query(ge=1, le=2**31 - 1, description="One attempt, to its end.")
        ] = None,
        rank: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="What one rank has sent.")] = None,
    ) -> Response:
        """A figure over steps, for a layer by name or id, a module by prefix, or the whole model."""
        return _unless_known(
            request,
            source.version(known_id(run_id)),
            lambda: source.series(
                run_id,
                metric,
                layer=layer,
                from_step=from_step,
                to_step=to_step,
                max_points=max_points,
                attempt=attempt,
                rank=rank,
            ),
        )

    @router.get("/runs/{run_id}/heatmap", response_model=Heatmap, responses=REFUSALS, tags=["history"])
    def heatmap(
        run_id: str,
        request: Request,
        metric: Metric = "lost_fraction",
        max_steps: Annotated[int, Query(ge=1, le=2000)] = 400,
        max_layers: Annotated[int, Query(ge=1, le=5000)] = 200,
    ) -> Response:
        """A figure for layers × step buckets, worst layers first."""
        return _unless_known(
            request,
            source.version(known_id(run_id)),
            lambda: source.heatmap(run_id, metric, max_steps=max_steps, max_layers=max_layers),
        )

    @router.get(
        "/runs/{run_id}/headroom", response_model=HeadroomHistory, responses=REFUSALS, tags=["history"]
    )
    def headroom(
        run_id: str,
        request: Request,
        layer: Name = None,
        step: StepBound = None,
        max_steps: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Headroom histograms over steps of a layer, a module (summed) or the model; with `step` the last up to it."""
        return _unless_known(
            request,
            source.version(known_id(run_id)),
            lambda: source.headroom(run_id, layer=layer, step=step, max_steps=max_steps),
        )

    @router.get("/runs/{run_id}/forecast", response_model=Forecast, responses=REFUSALS, tags=["diagnosis"])
    def forecast(run_id: str, request: Request) -> Response:
        """At which lower learning rates layers, and the model, would have lost 10, 50 and 90 % of their updates."""
        return _unless_known(request, source.version(known_id(run_id)), lambda: source.forecast(run_id))

    @router.get("/runs/{run_id}/advice", response_model=Advised, responses=REFUSALS, tags=["diagnosis"])
    def advice(run_id: str, request: Request) -> Response:
        """What every strategy would have lost of the newest updates, and the cheapest that holds."""
        return _unless_known(request, source.version(known_id(run_id)), lambda: source.advice(run_id))

    @router.get(
        "/runs/{run_id}/findings", response_model=list[Finding], responses=REFUSALS, tags=["diagnosis"]
    )
    def findings(run_id: str, request: Request) -> Response:
        """What a look at dtypes, settings and weights has told before the first step."""
        return _unless_known(request, source.version(known_id(run_id)), lambda: source.findings(run_id))

    @router.get("/compare", response_model=Comparison, responses=REFUSALS, tags=["history"])
    def compare(
        runs: Annotated[str, Query(max_length=1400, description="Two to ten run ids, joined by commas.")],
        metric: Metric,
        layer: Name = None,
        max_points: Annotated[int, Query(ge=1, le=5000)] = 1000,
    ) -> Response:
        """One figure of several runs."""
        ids = [known_id(one) for one in runs.split(",")]
        return answer(source.compare(ids, metric, layer=layer, max_points=max_points))

    @router.get("/alerts", response_model=AlertPage, responses=REFUSALS, tags=["alerts"])
    def alerts(
        run_id: Name = None,
        project: Name = None,
        state: AlertState | None = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """Alerts, newest first."""
        known = None if run_id is None else known_id(run_id)
        return answer(source.alerts(run_id=known, project=project, state=state, limit=limit, cursor=cursor))
