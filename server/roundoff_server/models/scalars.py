"""What the user logs: names once, values by their 64-bit pattern so that NaN and −0.0 survive SQLite."""

from __future__ import annotations

from sqlalchemy import BigInteger, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Key, OwnedByRun, SampledRun, Step


class ScalarName(Base):
    """A scalar of a run. `digest` (SHA-256 of the name) is unique, because names may be too long to index."""

    __tablename__ = "scalar_names"
    __table_args__ = (UniqueConstraint("run", "digest"),)

    run: Mapped[OwnedByRun]
    scalar: Mapped[Key]
    name: Mapped[str]
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))


class ScalarValue(Base):
    """One value; `bits` is the binary64 pattern read as int64."""

    __tablename__ = "scalars"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    scalar: Mapped[Key]
    attempt: Mapped[Key]
    rank: Mapped[Key]
    step: Mapped[Step]
    bits: Mapped[int] = mapped_column(BigInteger)
