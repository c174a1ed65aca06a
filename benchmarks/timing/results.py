"""What the step benchmark finds, as it is written to JSON and read back."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from .machine import Machine

Statistics = Literal["off", "sums", "histograms"]
"""What a step measures: nothing, the sums of numerics §4, or those and the histograms."""

Status = Literal["measured", "skipped", "absent", "failed"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Model):
    """Median and quartiles over the rounds."""

    middle: float
    low: float
    high: float


class Timing(_Model):
    """One step with one choice of statistics."""

    statistics: Statistics
    seconds: Figure
    """Per step."""
    ratio: Figure
    """To the baseline's step in the same round; the middle is the median of the rounds' ratios."""
    ratio_of_medians: float
    added: Figure | None
    """By the statistics, as a fraction of the same optimizer's step without them in the same round."""


class Case(_Model):
    """One optimizer on one workload."""

    contender: str
    package: str | None
    """`name version` of a third party's."""
    strategy: str | None
    backend: str | None
    dtype: str
    workload: str
    numel: int
    tensors: int
    status: Status
    reason: str | None = None
    """Why it was not measured, or which of its timings are missing."""
    rounds: int = 0
    repeats: int = 0
    """Steps in one sample without statistics."""
    baseline_seconds: Figure | None = None
    bytes_per_parameter: float | None = None
    """Weight, gradient and every tensor that lives after two steps and did not before."""
    writes_gradients: bool | None = None
    """Whether a step changes the gradients that it is given."""
    timings: tuple[Timing, ...] = ()

    def timing(self, statistics: Statistics) -> Timing | None:
        """The timing with that choice, if there is one."""
        return next((timing for timing in self.timings if timing.statistics == statistics), None)


class Report(_Model):
    """All of one run. `layout` changes when a field changes its meaning."""

    layout: Literal[1] = 1
    finished: datetime
    seconds: float
    machine: Machine
    baseline: str
    cases: tuple[Case, ...]
