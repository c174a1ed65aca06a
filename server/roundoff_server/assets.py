"""Static files: those of the pages, and plotly.js from the installed package."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

LONG = "public, max-age=31536000, immutable"
SHORT = "public, no-cache"


def _caching(query: bytes | str) -> str:
    """An address with a version in it never changes; the plain one is asked for again."""
    text = query.decode("latin-1") if isinstance(query, bytes) else query
    return LONG if text.startswith("v=") or "&v=" in text else SHORT


def plotly_script() -> Path:
    """plotly.js as the plotly package ships it. Raises FileNotFoundError. Found without importing plotly."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script
    raise FileNotFoundError("plotly.min.js is not where the plotly package keeps it; reinstall plotly")


class Assets(StaticFiles):
    """Static files with caching."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = _caching(scope["query_string"])
        return response


def create_plotly() -> APIRouter:
    """`/static/plotly.min.js`."""
    router = APIRouter(include_in_schema=False)

    @router.get("/static/plotly.min.js")
    def plotly(request: Request) -> Response:
        try:
            script = plotly_script()
        except FileNotFoundError as error:
            raise HTTPException(404, str(error)) from None
        headers = {"Cache-Control": _caching(request.url.query)}
        return FileResponse(script, media_type="text/javascript", headers=headers)

    return router
