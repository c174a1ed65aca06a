"""Batches: which `(writer, seq)` were taken, so that sending one again changes nothing."""

from __future__ import annotations

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, OwnedByRun, Seconds


class TakenBatch(Base):
    """One committed batch."""

    __tablename__ = "batches"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[OwnedByRun]
    writer: Mapped[str] = mapped_column(String(64), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    taken_at: Mapped[Seconds]
