"""Samples: one typed row of additive sums per layer and step, and one of the whole model beside it."""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from .base import Base, Key, Long, Real, SampledRun, Step


class SumColumns:
    """The columns of `metrics.ROW`, by the same names and in the same order."""

    numel: Mapped[Long]
    attempted: Mapped[Long]
    lost: Mapped[Long]
    invisible: Mapped[Long]
    unchanged: Mapped[Long]
    decay_attempted: Mapped[Long]
    decay_lost: Mapped[Long]
    v_attempted: Mapped[Long]
    v_stuck: Mapped[Long]
    v_stuck_high: Mapped[Long]
    underflowed: Mapped[Long]
    v_underflowed: Mapped[Long]
    nonfinite: Mapped[Long]
    zero_grad: Mapped[Long]
    skipped: Mapped[Long]
    frozen: Mapped[Long]
    frozen_of: Mapped[Long]
    sum_uu: Mapped[Real]
    sum_ua: Mapped[Real]
    sum_aa: Mapped[Real]
    sum_us: Mapped[Real]
    sum_ss: Mapped[Real]
    sum_ww: Mapped[Real]
    expected_roundings: Mapped[Real]


class LayerSample(SumColumns, Base):
    """The sums of one layer at one step, clustered so that one layer's history lies together."""

    __tablename__ = "layer_samples"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    layer: Mapped[Key]
    attempt: Mapped[Key]
    rank: Mapped[Key]
    step: Mapped[Step]


class ModelSample(SumColumns, Base):
    """The sums over all watched layers at one step."""

    __tablename__ = "model_samples"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    attempt: Mapped[Key]
    rank: Mapped[Key]
    step: Mapped[Step]
