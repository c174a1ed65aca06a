"""Alerts, and the state of each scope that a rule watches."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Key, OwnedByRun, Seconds


class Scope(Base):
    """How one scope (the model, `layer` 0, or a layer) stands: its `Track` and where the rule is with it.

    `health`, `lost_fraction` and `efficiency` repeat what the track says over its window, for lists.
    """

    __tablename__ = "scopes"

    run: Mapped[OwnedByRun]
    layer: Mapped[Key]
    track: Mapped[dict[str, Any]] = mapped_column(JSON)
    last_step: Mapped[int] = mapped_column(BigInteger)
    health: Mapped[str | None] = mapped_column(String(16))
    lost_fraction: Mapped[float | None] = mapped_column(Double)
    efficiency: Mapped[float | None] = mapped_column(Double)
    streak: Mapped[int]
    since_step: Mapped[int | None] = mapped_column(BigInteger)
    firing: Mapped[bool]


class AlertRow(Base):
    """One alert of one rule on one run; `layers` holds the worst layer ids first, capped."""

    __tablename__ = "alerts"
    __table_args__ = (Index(None, "created_at"),)

    run: Mapped[OwnedByRun]
    number: Mapped[Key]
    rule: Mapped[str] = mapped_column(String(64))
    severity: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    model: Mapped[bool]
    layers: Mapped[list[int]] = mapped_column(JSON)
    layer_count: Mapped[int]
    headline: Mapped[str]
    cure: Mapped[str]
    since_step: Mapped[int] = mapped_column(BigInteger)
    fired_step: Mapped[int | None] = mapped_column(BigInteger)
    resolved_step: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[Seconds]
    fired_at: Mapped[float | None] = mapped_column(Double)
    resolved_at: Mapped[float | None] = mapped_column(Double)
    reason: Mapped[str | None]
