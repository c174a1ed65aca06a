"""Liveness, readiness, and figures of the server itself."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response

from roundoff.wire import WIRE_VERSION, Problem

from .. import __version__
from ..database import DatabaseUnusableError, require_current
from .context import Service
from .problems import problem

log = logging.getLogger(__name__)


def create_health(service: Service, registry: CollectorRegistry) -> APIRouter:
    """`/healthz`: the process answers. `/readyz`: it can work. `/metrics`: what it has done, for Prometheus."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """The process is alive."""
        return JSONResponse({"name": "roundoff", "version": __version__, "wire": WIRE_VERSION})

    @router.get(
        "/readyz", responses={503: {"model": Problem, "description": "The database does not answer."}}
    )
    def readyz() -> Response:
        """The database answers, and has the schema of this version."""
        try:
            require_current(service.database)
        except DatabaseUnusableError as error:
            log.error("not ready: %s", error)
            reason = "the database does not answer, or has not the schema of this version; the log says which"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return JSONResponse({"ready": True})

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {CONTENT_TYPE_LATEST: {}}, "description": "Prometheus' text format."}},
    )
    def metrics() -> Response:
        """Requests, batches, what waits, who listens, connections in use."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
