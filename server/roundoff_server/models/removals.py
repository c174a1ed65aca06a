"""Runs that are deleted, and whose rows are still to go."""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from .base import Base, SampledRun


class Removal(Base):
    """The key of a deleted run; it goes last, so that what a crash leaves behind is found again."""

    __tablename__ = "removals"

    run: Mapped[SampledRun]
