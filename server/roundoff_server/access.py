"""Who may ask: the Host header, the origin of writes, the token, and what browsers are told to allow."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roundoff.wire import TokenScope

from .api.problems import problem
from .api.router import PREFIX
from .gate import Caller, Gate, WrongTokensError, place_of
from .logs import AUDIT

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)

INGEST = re.compile(rf"PUT {PREFIX}/runs/[^/]+|POST {PREFIX}/runs/[^/]+/batches")
OPEN_PATHS = ("/healthz", "/readyz", "/login", "/static/")
"""What may be seen without a token: liveness, and what the sign-in page needs."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

# Plotly sets styles from its script, so styles may be inline; scripts may not.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)

SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def needed(method: str, path: str) -> TokenScope:
    """What a token must be for: *ingest* to start runs and send batches, *read* to look, *admin* for the rest."""
    if method in SAFE_METHODS:
        return "admin" if path.startswith(f"{PREFIX}/tokens") else "read"
    if path == "/logout":
        return "read"
    return "ingest" if INGEST.fullmatch(f"{method} {path}") else "admin"


def scope_of(method: str, path: str) -> TokenScope | None:
    """What a token must be for, None where nobody needs one."""
    return None if _is_open(path) else needed(method, path)


class Access:
    """ASGI middleware around everything.

    Without a gate the server is open, so with `local_only` the Host header must name this machine: a page of
    another site that made its own name point here must not read from it. Whoever may ask is at `scope["caller"]`.
    Every call that needs *admin* leaves a line in the log `roundoff.audit`.
    """

    def __init__(self, app: ASGIApp, gate: Gate | None, *, local_only: bool) -> None:
        self._app = app
        self._gate = gate
        self._local_only = local_only and gate is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        needs = needed(scope["method"], scope["path"])
        refusal = await self._refusal(scope, headers, needs)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    told.setdefault(name, value)
                told.setdefault("Cache-Control", "private, no-cache")
                if needs == "admin":
                    _note(scope, message["status"])
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope, headers: Headers, needs: TokenScope) -> Response | None:
        if self._local_only and not _is_local(headers.get("host", "")):
            return problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is open to this machine only; ask it as localhost or 127.0.0.1",
            )
        if scope["method"] not in SAFE_METHODS and _is_foreign(headers):
            return problem(HTTPStatus.FORBIDDEN, "a page of another site may not write here")
        if self._gate is None or _is_open(scope["path"]):
            return None
        place = place_of(scope)
        try:
            caller = await run_in_threadpool(self._gate.caller, headers, place)
        except WrongTokensError as error:
            return problem(HTTPStatus.TOO_MANY_REQUESTS, str(error), headers={"Retry-After": "60"})
        except SQLAlchemyError as error:
            log.error("the database did not answer: %s", error)
            detail = "the database is not available now, so tokens cannot be checked; ask again"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": "5"})
        scope["caller"] = caller
        return _verdict(scope, headers, caller, needs)


def _verdict(scope: Scope, headers: Headers, caller: Caller | None, needs: TokenScope) -> Response | None:
    if caller is not None and caller.may(needs):
        return None
    if caller is not None:
        return problem(
            HTTPStatus.FORBIDDEN,
            f"the token {caller.name!r} is for {', '.join(sorted(caller.scopes))}; this needs one for {needs}: "
            f"`roundoff token create NAME --scope {needs}`",
        )
    if scope["method"] in SAFE_METHODS and "text/html" in headers.get("accept", ""):
        query = scope["query_string"].decode("latin-1")
        back = quote(scope["path"], safe="/") + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(back, safe='')}", HTTPStatus.SEE_OTHER)
    return problem(
        HTTPStatus.UNAUTHORIZED,
        "a token is needed: send it as `Authorization: Bearer …` (client: ROUNDOFF_TOKEN)",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _note(scope: Scope, status: int) -> None:
    caller: Caller | None = scope.get("caller")
    audit.info(
        "%s %s %s",
        scope["method"],
        scope["path"],
        status,
        extra={
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "token": None if caller is None else caller.token,
            "token_name": None if caller is None else caller.name,
            "client": place_of(scope),
        },
    )


def _is_open(path: str) -> bool:
    return any(path.startswith(known) if known.endswith("/") else path == known for known in OPEN_PATHS)


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in LOCAL_NAMES or name.endswith(".localhost")


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser sends this for a page of another site. Programs send no Origin."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
