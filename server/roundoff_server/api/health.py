"""Liveness and readiness."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from roundoff.wire import WIRE_VERSION

from .. import __version__
from .context import Service
from .problems import problem


def create_health(service: Service) -> APIRouter:
    """`/healthz`: the process answers. `/readyz`: the database answers too."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """The process is alive."""
        return JSONResponse({"name": "roundoff", "version": __version__, "wire": WIRE_VERSION})

    @router.get("/readyz")
    def readyz() -> Response:
        """The database answers."""
        try:
            with service.database.read() as session:
                session.execute(text("SELECT 1 FROM runs WHERE run = 0"))
        except SQLAlchemyError as error:
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the database does not answer: {type(error).__name__}"
            )
        return JSONResponse({"ready": True})

    return router
