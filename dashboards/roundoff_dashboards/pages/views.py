"""Templates, conditional answers, and what every page needs."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from roundoff_dashboards.figures import spark
from roundoff_dashboards.source import Source

from . import formats

STATIC = Path(__file__).parents[1] / "static"
"""Folder of the script, the styles and the font, to be served at `/static`."""

THEME_COOKIE = "roundoff_theme"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("roundoff_dashboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("number", "fixed", "rate", "share", "count", "age", "instant", "health_word"):
        environment.filters[name] = getattr(formats, name)
    environment.globals.update(spark=spark, version=_static_version(), plotly_version=version("plotly"))
    return environment


@cache
def _static_version() -> str:
    """Changes with every file in `static`, so that browsers may keep them."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.glob("*.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


@cache
def _templates() -> Environment:
    return _environment()


def render(request: Request, template: str, **values: Any) -> Response:
    """The template as an answer that a browser may ask for again conditionally."""
    theme = request.cookies.get(THEME_COOKIE)
    html = (
        _templates()
        .get_template(template)
        .render(theme=theme if theme in ("light", "dark") else "", **values)
    )
    return conditional(request, html.encode(), "text/html; charset=utf-8")


def conditional(request: Request, body: bytes, media_type: str) -> Response:
    """`body`, or 304 if the browser holds it already."""
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Cookie"}
    if tag in (one.strip() for one in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def firing(source: Source) -> str:
    """How many alerts fire now, for the navigation."""
    page = source.alerts(state="firing", limit=50)
    return f"{len(page.alerts)}{'+' if page.next_cursor else ''}" if page.alerts else ""


def not_found_page(
    request: Request, source: Source, what: str = "There is nothing at this address."
) -> Response:
    """The designed page for what does not exist, status 404."""
    theme = request.cookies.get(THEME_COOKIE)
    html = (
        _templates()
        .get_template("not_found.html")
        .render(theme=theme if theme in ("light", "dark") else "", what=what, firing=firing(source), here="")
    )
    return HTMLResponse(html, status_code=404, headers={"Cache-Control": "no-store"})
