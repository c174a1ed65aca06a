"""Headroom histograms of one layer at one step."""

from __future__ import annotations

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Key, SampledRun, Step


class HeadroomSample(Base):
    """`counts` is `HEADROOM_BINS` little-endian int64, `energy` as many little-endian binary64."""

    __tablename__ = "headroom"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    layer: Mapped[Key]
    attempt: Mapped[Key]
    rank: Mapped[Key]
    step: Mapped[Step]
    counts: Mapped[bytes] = mapped_column(LargeBinary)
    energy: Mapped[bytes] = mapped_column(LargeBinary)
