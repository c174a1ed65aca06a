"""Access tokens, as they are asked for and shown."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from .answers import Answer
from .ingest import NO_NUL, Wire

TokenScope = Literal["ingest", "read", "admin"]
"""*ingest* starts runs and sends batches, *read* looks, *admin* may everything."""


class NewToken(Wire):
    """`POST /tokens`: a name that tells what it is for, what it may do, and for how many days (None: no end)."""

    name: str = Field(min_length=1, max_length=100, pattern=NO_NUL)
    scopes: list[TokenScope] = Field(min_length=1)
    days: float | None = Field(None, gt=0, le=36_500)


class Token(Answer):
    """One token, without the text that opens. `used` is known to a minute."""

    id: int
    name: str
    scopes: list[TokenScope]
    created: datetime
    expires: datetime | None
    used: datetime | None
    revoked: datetime | None


class MadeToken(Token):
    """A new token with its text, which is shown this once."""

    text: str
