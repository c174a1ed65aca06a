"""Make, list, find and revoke access tokens. The text of a token is known once, to who made it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import get_args

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from roundoff.wire import TokenScope

from ..models import TokenRow
from .problems import TakenError

SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)
DAY_S = 24 * 3600.0
PREFIX = "roundoff_"
"""Tokens begin with this, so that scanners for leaked secrets can tell them."""

USED_S = 60.0
"""When a token was last used is known to this."""


def digest_of(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


def create(
    session: Session, name: str, scopes: Sequence[TokenScope], now: float, days: float | None
) -> tuple[TokenRow, str]:
    """A new token and its text. Raises `TakenError` for a name that another one has that still opens."""
    taken = select(TokenRow.token).where(TokenRow.name == name, *_valid(now))
    if session.scalar(taken) is not None:
        raise TakenError(
            "name", f"there is a token called {name!r} already; revoke it, or choose another name"
        )
    text = PREFIX + secrets.token_urlsafe(32)
    row = TokenRow(
        name=name,
        hash=digest_of(text),
        scopes=",".join(scope for scope in SCOPES if scope in scopes),
        created_at=now,
        expires_at=None if days is None else now + days * DAY_S,
    )
    session.add(row)
    session.flush()
    return row, text


def listed(session: Session) -> Sequence[TokenRow]:
    """All tokens, oldest first, also those that do not open any more."""
    return session.scalars(select(TokenRow).order_by(TokenRow.token)).all()


def revoke(session: Session, token: int, now: float) -> TokenRow:
    """End a token. Doing it again changes nothing. Raises LookupError."""
    row = session.get(TokenRow, token)
    if row is None:
        raise LookupError(f"there is no token {token}")
    row.revoked_at = row.revoked_at or now
    return row


def numbered(session: Session, name: str, now: float) -> int:
    """The number of the token that is meant by its name or number. Raises LookupError."""
    named = session.scalar(select(TokenRow.token).where(TokenRow.name == name, *_valid(now)))
    if named is not None:
        return named
    if name.isascii() and name.isdigit() and session.get(TokenRow, int(name)) is not None:
        return int(name)
    raise LookupError(f"there is no token {name!r}; `roundoff token list` shows those that are there")


def find(session: Session, digest: bytes, now: float) -> TokenRow | None:
    """The token with this hash if it opens now."""
    return session.scalar(select(TokenRow).where(TokenRow.hash == digest, *_valid(now)))


def get(session: Session, token: int, now: float) -> TokenRow | None:
    """The token with this number if it opens now."""
    return session.scalar(select(TokenRow).where(TokenRow.token == token, *_valid(now)))


def any_valid(session: Session, now: float) -> bool:
    """Whether there is a token that opens."""
    return session.scalar(select(TokenRow.token).where(*_valid(now)).limit(1)) is not None


def mark_used(session: Session, token: int, now: float) -> None:
    """Note that a token was used."""
    session.execute(update(TokenRow).where(TokenRow.token == token).values(used_at=now))


def _valid(now: float) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return TokenRow.revoked_at.is_(None), (TokenRow.expires_at.is_(None) | (TokenRow.expires_at > now))
