"""Keep a run's strips and blocks true to its samples while they come in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from roundoff.metrics import ROW

from ..models import MODEL, Attempt, LayerSample, Resolution, Run, Writer
from . import strips
from .binned import Ints
from .blocks import block_width
from .buckets import FOREVER, window
from .decode import Arrays
from .sealing import Sealing

FALLEN_BEHIND = 2
"""Blocks by which a rank may lag before the others' are rolled up without it; what it sends later is added."""


@dataclass(slots=True)
class Upkeep:
    """The roll-ups while one batch of one rank is stored."""

    session: Session
    run: Run
    attempt: Attempt
    rank: int
    replaced: set[int] = field(default_factory=set)
    """Steps of rows that are there already: sums that hold them must be made anew."""
    all_new: bool = True
    """Whether every step is later than all that this rank has sent before, and named once for each layer."""
    widened: bool = False
    """Whether all strips were made anew, and the old ones wait to be forgotten."""

    def will_store(self, samples: Arrays) -> None:
        """Call it before rows are stored, of layers (with a column `layer`) or of the model."""
        step = samples["step"]
        late = step <= self._reached()
        twins = _has_twins(samples)
        self.all_new &= not (twins or late.any())
        if "layer" not in samples:
            return
        if twins:
            self.replaced.update(step.tolist())
        if late.any():
            layers = np.unique(samples["layer"][late]).tolist()
            self.replaced.update(self._stored(layers, np.unique(step[late]).tolist()))

    def _reached(self) -> int:
        """The last step of which this rank has sent samples; -1 before the first."""
        last = self.session.scalar(
            select(func.max(Writer.sampled_step)).where(
                Writer.run == self.run.run, Writer.attempt == self.attempt.number, Writer.rank == self.rank
            )
        )
        return -1 if last is None else last

    def roll_up(self, model: Arrays | None, samples: Arrays | None, reached: dict[int, int]) -> None:
        """Call it after rows are stored. `reached`: rank → the last step it has sent samples of."""
        resolution = self.session.get(Resolution, self.run.run)
        if resolution is None:
            resolution = self._first_resolution()
        elif samples is not None:
            self._add_to_strips(resolution, samples)
        if not reached:
            return
        sealing = Sealing(self.session, resolution, self.attempt.number, sorted(reached))
        for arrays in (model, samples):
            if arrays is not None:
                layer = arrays.get("layer", np.full(len(arrays["step"]), MODEL))
                sealing.again(layer.astype("i8"), arrays["step"].astype("i8"))
        rows = sum(len(arrays["step"]) for arrays in (model, samples) if arrays is not None)
        if rows:
            sealing.roll_up(_complete(resolution, reached), rows)

    def _stored(self, layers: list[int], steps: list[int]) -> list[int]:
        """Those of the steps that one of the layers has a row of, of this attempt and rank."""
        rows = select(LayerSample.step).where(
            LayerSample.run == self.run.run,
            LayerSample.layer.in_(layers),
            LayerSample.attempt == self.attempt.number,
            LayerSample.rank == self.rank,
            LayerSample.step.in_(steps),
        )
        return list(self.session.scalars(rows.distinct()))

    def _first_resolution(self) -> Resolution:
        resolution = Resolution(run=self.run.run, strip_width=1, unit=None)
        self.session.add(resolution)
        self.session.flush()
        strips.build(self.session, resolution, window(self.session, self.run))
        return resolution

    def _add_to_strips(self, resolution: Resolution, samples: Arrays) -> None:
        step, layer = samples["step"].astype("i8"), samples["layer"].astype("i8")
        low = self.attempt.first_step if self.attempt.number > 1 else 0
        high = FOREVER if self.attempt.end_step is None else self.attempt.end_step
        seen = (step >= low) & (step < high)
        known = set() if resolution.thinned else self.replaced
        again = sorted({old - old % resolution.strip_width for old in known})
        fresh = seen & ~np.isin(step - step % resolution.strip_width, again)
        if again:
            strips.rebuild(self.session, resolution, window(self.session, self.run), again)
        sums = {name: samples[name][fresh] for name in ROW}
        self.widened = strips.add_samples(self.session, resolution, step[fresh], layer[fresh], sums)


def _has_twins(samples: Arrays) -> bool:
    """Whether two rows are of the same layer and step."""
    layer = samples.get("layer", np.zeros(len(samples["step"])))
    keys: Ints = np.stack([layer, samples["step"]]).astype("i8")
    order = np.lexsort(keys)
    return bool((np.diff(keys[:, order], axis=1) == 0).all(axis=0).any())


def _complete(resolution: Resolution, reached: dict[int, int]) -> int:
    """The step below which no rank is expected to send more."""
    last = max(reached.values()) + 1
    lag = 0 if resolution.unit is None else FALLEN_BEHIND * block_width(resolution.unit, 1)
    return max(min(reached.values()) + 1, last - lag) if lag else min(reached.values()) + 1
