"""Samples: one typed row of additive sums per layer and step, and one of the whole model beside it."""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from .base import Base, Count, Key, Real, SampledRun, Step


class SumColumns:
    """The columns of `metrics.ROW`, by the same names and in the same order; a count that is NULL is 0."""

    numel: Mapped[Count]
    attempted: Mapped[Count]
    lost: Mapped[Count]
    invisible: Mapped[Count]
    unchanged: Mapped[Count]
    decay_attempted: Mapped[Count]
    decay_lost: Mapped[Count]
    v_attempted: Mapped[Count]
    v_stuck: Mapped[Count]
    v_stuck_high: Mapped[Count]
    underflowed: Mapped[Count]
    v_underflowed: Mapped[Count]
    nonfinite: Mapped[Count]
    zero_grad: Mapped[Count]
    skipped: Mapped[Count]
    frozen: Mapped[Count]
    frozen_of: Mapped[Count]
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
