"""The gate: which token or session a request carries, and what that may do."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from itsdangerous import BadSignature, URLSafeTimedSerializer
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.types import Scope

from roundoff.wire import TokenScope

from .database import Database
from .models import TokenRow
from .services import tokens

COOKIE = "roundoff_session"
SESSION_S = 7 * 24 * 3600
"""How long a browser stays signed in."""

KEPT_S = 5.0
"""How long what the database says of a token is taken for granted: a revoked one opens no longer than that."""

WRONG_TOKENS = parse("30/minute")
"""So many wrong tokens are answered to one address."""

MOST_KEPT = 1000
SET_TOKEN = 0
"""Stands for the token of the settings, which is in no table."""

log = logging.getLogger(__name__)


class WrongTokensError(PermissionError):
    """Too many wrong tokens came from one address."""

    def __init__(self) -> None:
        super().__init__("too many wrong tokens came from this address; wait a minute")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a token's number and name, its hash, what it may do, and until when it opens (None: no end)."""

    token: int
    name: str
    digest: bytes
    scopes: frozenset[TokenScope]
    until: float | None = None

    def may(self, scope: TokenScope) -> bool:
        """Whether it may; *admin* may everything."""
        return scope in self.scopes or "admin" in self.scopes


class Gate:
    """Tells callers by their tokens: those of the database, and the admin token of the settings if there is one.

    A session stands for the token that it was begun with, signed with a key made of that token's hash: it ends with
    the token, and every server on the database knows it. Calls wait for the database.

    After many wrong tokens from one address it takes no more of them, nor the one of the settings, which people choose
    and others may guess. Tokens of the database cannot be guessed: they open also where a neighbour is wrong.
    """

    def __init__(self, database: Database, admin_token: str | None, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._set: Caller | None = None
        if admin_token is not None:
            digest = tokens.digest_of(admin_token)
            self._set = Caller(SET_TOKEN, "ROUNDOFF_ADMIN_TOKEN", digest, frozenset({"admin"}))
        self._wrong = MovingWindowRateLimiter(MemoryStorage())
        self._kept: dict[bytes | int, tuple[Caller, float]] = {}

    def caller(self, headers: Headers, place: str) -> Caller | None:
        """Who sends these headers from an address; None if that opens nothing. Raises `WrongTokensError`."""
        text = bearer(headers)
        if text is not None:
            return self.with_token(text, place)
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return None
        return None if cookie is None else self.with_session(cookie.value)

    def with_token(self, text: str, place: str) -> Caller | None:
        """Who has this token. It is compared by its hash, the one of the settings in constant time.

        Raises `WrongTokensError`.
        """
        digest = tokens.digest_of(text)
        if self._set is not None and hmac.compare_digest(digest, self._set.digest):
            if not self._wrong.test(WRONG_TOKENS, place):
                raise WrongTokensError
            return self._set
        found = self._look_up(digest)
        if found is None and not self._wrong.hit(WRONG_TOKENS, place):
            raise WrongTokensError
        return found

    def with_session(self, cookie: str) -> Caller | None:
        """Who has begun this session, unless it is too old or its token opens no more."""
        number, _, signed = cookie.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            return None
        found = self._set if int(number) == SET_TOKEN else self._look_up(int(number))
        if found is None:
            return None
        try:
            return found if _signer(found).loads(signed, max_age=SESSION_S) == int(number) else None
        except BadSignature:
            return None

    def new_session(self, caller: Caller) -> str:
        """The value of a session cookie for the holder of a token."""
        return f"{caller.token}.{_signer(caller).dumps(caller.token)}"

    def _look_up(self, key: bytes | int) -> Caller | None:
        now = self._clock()
        kept = self._kept.get(key)
        if kept is not None and now < kept[1]:
            return kept[0] if kept[0].until is None or now < kept[0].until else None
        self._kept.pop(key, None)
        with self._database.read() as session:
            row = tokens.find(session, key, now) if isinstance(key, bytes) else tokens.get(session, key, now)
        if row is None:
            return None
        self._note_use(row, now)
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        scopes = frozenset(scope for scope in tokens.SCOPES if scope in row.scopes.split(","))
        found = Caller(row.token, row.name, row.hash, scopes, row.expires_at)
        self._kept[key] = found, now + KEPT_S
        return found

    def _note_use(self, row: TokenRow, now: float) -> None:
        if row.used_at is not None and now - row.used_at < tokens.USED_S:
            return
        try:
            with self._database.write() as session:
                tokens.mark_used(session, row.token, now)
        except SQLAlchemyError as error:  # no reason to refuse
            log.warning("when token %s was used is not noted: %s", row.token, error)


def place_of(scope: Scope) -> str:
    """The address that a request comes from; behind a proxy that is believed, the one that it names."""
    client = scope.get("client")
    return client[0] if client else ""


def bearer(headers: Headers) -> str | None:
    """The token in an Authorization header."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" and text.strip() else None


def _signer(caller: Caller) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(hmac.digest(caller.digest, b"roundoff session", "sha256"), salt=COOKIE)
