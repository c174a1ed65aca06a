"""The application: routes, pages and static files behind one gate."""

from __future__ import annotations

import time
from collections.abc import Callable

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI

from roundoff_dashboards.pages import STATIC, create_pages, not_found_page

from . import __version__
from .access import Access, scope_of
from .api import create_api
from .api.context import Service
from .api.health import create_health
from .api.openapi import describe
from .api.problems import handle_problems
from .api.router import PREFIX
from .assets import Assets, create_plotly
from .database import Database
from .gate import Gate
from .login import create_login
from .logs import REQUEST_ID, is_request_id
from .telemetry import Telemetry, Timed


def create_app(
    database: Database,
    *,
    token: str | None = None,
    closed: bool = False,
    local_only: bool = True,
    clock: Callable[[], float] = time.time,
    heartbeat_s: float = 15.0,
) -> FastAPI:
    """The application on a migrated database.

    With an admin `token`, or `closed` to all but the tokens in the database, every page and route asks for one.
    Without, `local_only` refuses requests whose Host header does not name this machine. `clock` is the server's time
    in seconds since 1970 UTC. The service is at `app.state.service`; close its `bus` to end open event streams.
    """
    service = Service(database, clock, heartbeat_s)
    gate = Gate(database, token, clock) if token or closed else None
    app = FastAPI(
        title="roundoff",
        version=__version__,
        summary="Precision diagnostics for 16-bit training.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # both would load scripts from another site
        redoc_url=None,
    )
    app.state.service = service
    handle_problems(app, lambda request: not_found_page(request, service.query))
    app.include_router(create_api(service))
    telemetry = Telemetry(service)
    app.include_router(create_health(service, telemetry.registry))
    app.include_router(create_login(gate))
    app.include_router(create_pages(service.query))
    app.include_router(create_plotly())
    app.mount("/static", Assets(directory=STATIC), name="static")
    describe(app, scope_of)
    app.add_middleware(Access, gate=gate, local_only=local_only)
    app.add_middleware(Timed, telemetry=telemetry)
    app.add_middleware(CorrelationIdMiddleware, header_name=REQUEST_ID, validator=is_request_id)
    return app
