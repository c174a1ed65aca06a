"""Who may ask: the Host header, the origin of writes, the token, and what browsers are told to allow."""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api.problems import problem

COOKIE = "roundoff_session"
SESSION_S = 7 * 24 * 3600
"""How long a browser stays signed in."""

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


class Gate:
    """Checks a token and the sessions that stand for it. Keeps the token's hash only."""

    def __init__(self, token: str) -> None:
        self._hash = hashlib.sha256(token.encode()).digest()
        key = hmac.digest(self._hash, b"roundoff session", "sha256")
        self._sessions = URLSafeTimedSerializer(key, salt=COOKIE)

    def opens(self, token: str) -> bool:
        """Whether this is the token, in constant time."""
        return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._hash)

    def new_session(self) -> str:
        """The value of a session cookie."""
        return str(self._sessions.dumps("admin"))

    def knows(self, session: str) -> bool:
        """Whether a session cookie was made here and is not too old."""
        try:
            return bool(self._sessions.loads(session, max_age=SESSION_S) == "admin")
        except BadSignature:
            return False

    def admits(self, headers: Headers) -> bool:
        """Whether a request carries the token or a session."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.opens(token.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and self.knows(cookie.value)


class Access:
    """ASGI middleware around everything.

    Without a gate the server is open, so with `local_only` the Host header must name this machine: a page of
    another site that made its own name point here must not read from it.
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
        refusal = self._refusal(scope, headers)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    told.setdefault(name, value)
                told.setdefault("Cache-Control", "private, no-cache")
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if self._local_only and not _is_local(headers.get("host", "")):
            return problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is open to this machine only; ask it as localhost or 127.0.0.1",
            )
        if scope["method"] not in SAFE_METHODS and _is_foreign(headers):
            return problem(HTTPStatus.FORBIDDEN, "a page of another site may not write here")
        path = scope["path"]
        if self._gate is None or _is_open(path) or self._gate.admits(headers):
            return None
        if scope["method"] in SAFE_METHODS and "text/html" in headers.get("accept", ""):
            query = scope["query_string"].decode("latin-1")
            back = quote(path, safe="/") + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?next={quote(back, safe='')}", HTTPStatus.SEE_OTHER)
        return problem(
            HTTPStatus.UNAUTHORIZED,
            "a token is needed: send it as `Authorization: Bearer …` (client: ROUNDOFF_TOKEN)",
            headers={"WWW-Authenticate": "Bearer"},
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
