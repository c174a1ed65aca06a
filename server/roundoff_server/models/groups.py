"""Settings of parameter groups at sampled steps."""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from .base import Base, Key, Real, SampledRun, Step


class GroupSample(Base):
    """Learning rate and weight decay of one group at one step."""

    __tablename__ = "group_samples"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    group_index: Mapped[Key]
    attempt: Mapped[Key]
    rank: Mapped[Key]
    step: Mapped[Step]
    lr: Mapped[Real]
    weight_decay: Mapped[Real]
