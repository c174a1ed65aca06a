"""Attempts: one process life of a run, and the writers that send for it."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Key, OwnedByRun, Seconds


class Attempt(Base):
    """`end_step` is the declared first step of a later attempt, where the merged view cuts this one."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("run", "token"),)

    run: Mapped[OwnedByRun]
    number: Mapped[Key]
    token: Mapped[str] = mapped_column(String(128))
    first_step: Mapped[int] = mapped_column(BigInteger)
    end_step: Mapped[int | None] = mapped_column(BigInteger)
    world_size: Mapped[int]
    state: Mapped[str] = mapped_column(String(16), default="running")
    started_at: Mapped[Seconds]


class Writer(Base):
    """One stream of batches: who sends, how far it has come, what it dropped, how it ended."""

    __tablename__ = "writers"

    run: Mapped[OwnedByRun]
    writer: Mapped[str] = mapped_column(String(64), primary_key=True)
    attempt: Mapped[int]
    rank: Mapped[int]
    sampled_step: Mapped[int | None] = mapped_column(BigInteger)
    dropped: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)
    ended: Mapped[str | None] = mapped_column(String(16))
