"""Access tokens: who may ask. They belong to the server, not to a run."""

from __future__ import annotations

from sqlalchemy import Double, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Seconds


class TokenRow(Base):
    """One token. Only its hash is kept: SHA-256 is enough for 256 random bits. `scopes` are joined by commas."""

    __tablename__ = "tokens"

    token: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    scopes: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Seconds]
    expires_at: Mapped[float | None] = mapped_column(Double)
    used_at: Mapped[float | None] = mapped_column(Double)
    revoked_at: Mapped[float | None] = mapped_column(Double)
