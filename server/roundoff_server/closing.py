"""Whether a server asks for tokens, and the first one."""

from __future__ import annotations

import time

from .database import Database
from .services import tokens
from .settings import ServerSettings, SettingsError

FIRST = "first"
"""Name of the token that `serve` makes itself."""


def first_token(database: Database, settings: ServerSettings) -> str | None:
    """The text of a new admin token where others can reach the server and none opens it; None where that is not so."""
    if settings.loopback or settings.insecure or settings.token:
        return None
    now = time.time()
    with database.write() as session:
        if tokens.any_valid(session, now):
            return None
        return tokens.create(session, FIRST, ["admin"], now, None)[1]


def is_closed(database: Database, settings: ServerSettings) -> bool:
    """Whether everyone needs a token: not on this machine alone as long as there is none, nor with *insecure*.

    Raises SettingsError for a token that is set and not to be asked for.
    """
    if settings.insecure:
        if settings.token:
            raise SettingsError("insecure and admin_token are both set; take one of them away")
        return False
    with database.read() as session:
        return not settings.loopback or bool(settings.token) or tokens.any_valid(session, time.time())
