"""What a list of runs shows of each run, kept up to date as data comes, so that a list reads one row a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..models import Run

SPARK_POINTS = 48
"""Points of the small loss line; beyond them every second one is left out and only every second kept."""


@dataclass(slots=True)
class Glance:
    """Updates the run's newest step, learning rate, loss and small loss line."""

    run: Run

    def reached(self, step: int) -> None:
        """Samples up to `step` are there."""
        self.run.step = step if self.run.step is None else max(step, self.run.step)

    def rate(self, step: int, lr: float) -> None:
        """The first group's learning rate at `step`."""
        if self.run.lr_step is None or step >= self.run.lr_step:
            self.run.lr_step, self.run.lr = step, None if math.isnan(lr) else lr

    def losses(self, steps: Sequence[int], bits: Sequence[int]) -> None:
        """Values of the scalar `loss`, by 64-bit pattern."""
        run = self.run
        spark, stride, seen = list(run.spark), run.spark_stride, run.spark_seen
        for step, pattern in sorted(zip(steps, bits, strict=True)):
            if run.loss_step is not None and step < run.loss_step:
                continue
            run.loss_step, run.loss_bits = step, pattern
            if seen % stride == 0:
                spark.append([step, pattern])
            seen += 1
            if len(spark) > SPARK_POINTS:
                spark, stride = spark[::2], 2 * stride
        run.spark, run.spark_stride, run.spark_seen = spark, stride, seen
        if steps:
            self.reached(max(steps))
