"""The application: routes, pages and static files behind one gate."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import FastAPI

from roundoff_dashboards.pages import STATIC, create_pages, not_found_page

from . import __version__
from .access import Access, Gate
from .api import create_api
from .api.context import Service
from .api.health import create_health
from .api.problems import handle_problems
from .api.router import PREFIX
from .assets import Assets, create_plotly
from .database import Database
from .login import create_login


def create_app(
    database: Database,
    *,
    token: str | None = None,
    local_only: bool = True,
    clock: Callable[[], float] = time.time,
    heartbeat_s: float = 15.0,
) -> FastAPI:
    """The application on a migrated database.

    With `token` every page and route asks for it. Without, `local_only` refuses requests whose Host header
    does not name this machine. `clock` is the server's time in seconds since 1970 UTC. The service is at
    `app.state.service`; close its `bus` to end open event streams.
    """
    service = Service(database, clock, heartbeat_s)
    gate = Gate(token) if token else None
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
    app.include_router(create_health(service))
    app.include_router(create_login(gate))
    app.include_router(create_pages(service.query))
    app.include_router(create_plotly())
    app.mount("/static", Assets(directory=STATIC), name="static")
    app.add_middleware(Access, gate=gate, local_only=local_only)
    return app
