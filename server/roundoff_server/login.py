"""Sign a browser in with a token."""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from .api.body import read_body
from .gate import COOKIE, SESSION_S, Gate, WrongTokensError, place_of

MAX_FORM = 8192

PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>Sign in · roundoff</title>
  <link rel="stylesheet" href="/static/app.css">
  <style>
    form {{ max-width: 22rem; margin: 18vh auto; display: grid; gap: .75rem; padding: 0 1rem }}
    input, button {{ font: inherit; padding: .5rem .75rem; border-radius: 8px; border: 1px solid #8886 }}
  </style>
</head>
<body>
  <form method="post" action="/login">
    <h1>roundoff</h1>
    {message}
    <label for="token">Access token</label>
    <input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
    <input name="next" type="hidden" value="{back}">
    <button type="submit">Sign in</button>
  </form>
</body>
</html>
"""


def _own_path(path: str) -> str:
    """A path of this server, so that signing in leads nowhere else."""
    safe = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and "\\" not in path
    )
    return path if safe else "/"


def _page(back: str, message: str = "", status: int = HTTPStatus.OK) -> Response:
    shown = f'<p role="alert">{escape(message)}</p>' if message else ""
    return HTMLResponse(PAGE.format(message=shown, back=escape(back, quote=True)), status)


def create_login(gate: Gate | None) -> APIRouter:
    """`/login` and `/logout`; without a gate both lead to the first page."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def show(request: Request) -> Response:
        back = _own_path(request.query_params.get("next", "/"))
        return RedirectResponse(back, HTTPStatus.SEE_OTHER) if gate is None else _page(back)

    @router.post("/login")
    async def sign_in(request: Request) -> Response:
        form = parse_qs((await read_body(request, MAX_FORM)).decode("utf-8", "replace"))
        back = _own_path(form.get("next", ["/"])[0])
        answer = RedirectResponse(back, HTTPStatus.SEE_OTHER)
        if gate is None:
            return answer
        text = form.get("token", [""])[0].strip()
        try:
            caller = await run_in_threadpool(gate.with_token, text, place_of(request.scope))
        except WrongTokensError:
            return _page(
                back, "Too many wrong tokens came from here. Wait a minute.", HTTPStatus.TOO_MANY_REQUESTS
            )
        if caller is None or not caller.may("read"):
            text = "This token may not read." if caller else "This is no token of this server."
            return _page(back, text, HTTPStatus.UNAUTHORIZED)
        answer.set_cookie(
            COOKIE,
            gate.new_session(caller),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @router.post("/logout")
    async def sign_out() -> Response:
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    return router
