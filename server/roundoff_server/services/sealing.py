"""Roll samples up into blocks at ingest: each block once, when no rank will send more of it, a little at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from roundoff.metrics import METRICS, ROW

from ..models import MODEL, BlockMark, LayerRow, LayerSample, ModelSample, Resolution
from .binned import Binned, Ints, in_buckets, joined
from .blocks import LEVELS, block_width, bucket_width, put_block, read_blocks, to_payload
from .buckets import FOREVER
from .samples import Scope, read_samples

SAMPLES = 6
"""Samples that a bucket of the finest level has at least."""

SEEN = 64
"""Samples from which the interval between them is told."""

ROWS_EACH = 2
"""Rows rolled up for each that comes in, so that the work never waits for long …"""

ROWS_AT_LEAST = 2000
"""… and this many more with every batch, so that it ends."""

LOOK = 50
"""What looking for a layer's rows costs, in rows."""


@dataclass(slots=True)
class Sealing:
    """The blocks of one attempt: `ranks` send for it."""

    session: Session
    resolution: Resolution
    attempt: int
    ranks: list[int]

    @property
    def unit(self) -> int:
        """Steps in a bucket of the finest level."""
        assert self.resolution.unit is not None
        return self.resolution.unit

    def scope(self, layer: int) -> Scope:
        """A layer of this attempt."""
        return Scope(self.resolution.run, layer, self.attempt, self.ranks)

    def roll_up(self, complete: int, rows: int) -> bool:
        """Go on where the last batch left off. Steps below `complete` are final; `rows` have just come in.

        Whether nothing of them is left to do.
        """
        mark = self._mark()
        if mark is None:
            return True
        last = self.session.scalar(select(func.max(LayerRow.layer)).where(LayerRow.run == mark.run)) or MODEL
        work = ROWS_EACH * rows + ROWS_AT_LEAST
        while work > 0:
            if mark.layer > last and not self._to_next_block(mark):
                return True
            if mark.step + block_width(self.unit, 1) > complete:
                return True
            work -= LOOK + self._seal(mark.layer, mark.step, mark.previous)
            mark.layer += 1
        return False

    def again(self, layers: Ints, steps: Ints) -> None:
        """Roll up once more what rows of `layers` at `steps` have changed."""
        mark = self.session.get(BlockMark, (self.resolution.run, self.attempt))
        if mark is None:
            return
        width = block_width(self.unit, 1)
        changed = np.unique(np.stack([layers, steps - steps % width]), axis=1).T.tolist()
        for layer, start in changed:
            if start < sealed_to(mark, self.unit, 1, layer):
                self._seal_samples(layer, start)
                for level in range(2, LEVELS + 1):
                    parent = start - start % block_width(self.unit, level)
                    if parent < sealed_to(mark, self.unit, level, layer):
                        self._seal_blocks(layer, parent, level)

    def _mark(self) -> BlockMark | None:
        """Where to go on; None before there are samples enough to tell how wide buckets should be."""
        mark = self.session.get(BlockMark, (self.resolution.run, self.attempt))
        if mark is not None:
            return mark
        if self.resolution.unit is None:
            self.resolution.unit = self._suitable_unit()
        first = None if self.resolution.unit is None else self._next_step(0)
        if first is None:
            return None
        start = first - first % block_width(self.unit, 1)
        mark = BlockMark(
            run=self.resolution.run, attempt=self.attempt, step=start, layer=MODEL, previous=start
        )
        self.session.add(mark)
        return mark

    def _suitable_unit(self) -> int | None:
        newest = (
            select(ModelSample.step)
            .where(*self.scope(MODEL).within((0, FOREVER)))
            .distinct()
            .order_by(ModelSample.step.desc())
            .limit(SEEN)
        )
        steps = self.session.scalars(newest).all()
        if len(steps) < SEEN:
            return None
        every = (steps[0] - steps[-1]) / (SEEN - 1)
        return int(2 ** np.ceil(np.log2(SAMPLES * every)))

    def _next_step(self, start: int) -> int | None:
        """The first step from `start` on of which there is a sample."""
        # A seek per layer and rank, which min() over all of them would not be.
        seek = (
            "(SELECT step FROM {0}_samples s WHERE s.run = :run {1} AND s.attempt = :attempt"
            " AND s.rank = w.rank AND s.step >= :start ORDER BY step LIMIT 1)"
        )
        writers = "FROM writers w {0} WHERE w.run = :run AND w.attempt = :attempt"
        model = f"SELECT min({seek.format('model', '')}) {writers.format('')}"
        layer = (
            f"SELECT min({seek.format('layer', 'AND s.layer = l.layer')})"
            f" {writers.format('JOIN layers l ON l.run = w.run')}"
        )
        keys = {"run": self.resolution.run, "attempt": self.attempt, "start": start}
        found = [self.session.scalar(text(query), keys) for query in (model, layer)]
        return min((step for step in found if step is not None), default=None)

    def _to_next_block(self, mark: BlockMark) -> bool:
        following = self._next_step(mark.step + block_width(self.unit, 1))
        if following is None:
            return False
        mark.previous, mark.layer = mark.step, MODEL
        mark.step = following - following % block_width(self.unit, 1)
        return True

    def _seal(self, layer: int, start: int, previous: int) -> int:
        """One block of a layer, and the wider ones that ended before it. Returns the samples read."""
        samples = self._seal_samples(layer, start)
        for level in range(2, LEVELS + 1):
            width = block_width(self.unit, level)
            if previous // width == start // width:
                break
            self._seal_blocks(layer, previous - previous % width, level)
        return samples

    def _seal_samples(self, layer: int, start: int) -> int:
        end = start + block_width(self.unit, 1)
        found = read_samples(self.session, self.scope(layer), (start, end), ROW, tuple(METRICS.values()))
        if len(found):
            parts = [found]
            if self.resolution.thinned and layer != MODEL:
                parts += [self._read(layer, 1, (start, end))]
                self.session.execute(delete(LayerSample).where(*self.scope(layer).within((start, end))))
            payload = to_payload(joined(parts, self.unit), start, self.unit)
            put_block(self.session, self._key(layer, 1, start), payload)
        return len(found) * len(self.ranks)

    def _seal_blocks(self, layer: int, start: int, level: int) -> None:
        width = bucket_width(self.unit, level)
        steps = (start, start + block_width(self.unit, level))
        found = self._read(layer, level - 1, steps)
        if len(found):
            put_block(
                self.session,
                self._key(layer, level, start),
                to_payload(in_buckets(found, width), start, width),
            )

    def _read(self, layer: int, level: int, steps: tuple[int, int]) -> Binned:
        return read_blocks(self.session, self.resolution.run, layer, self.attempt, level, self.unit, steps)

    def _key(self, layer: int, level: int, step: int) -> dict[str, int]:
        return {
            "run": self.resolution.run,
            "layer": layer,
            "attempt": self.attempt,
            "level": level,
            "step": step,
        }


def sealed_to(mark: BlockMark | None, unit: int | None, level: int, layer: int) -> int:
    """The step up to which the blocks of a level hold all of a layer's samples; 0 without any."""
    if mark is None or unit is None:
        return 0
    done = layer < mark.layer
    if level == 1:
        return mark.step + block_width(unit, 1) if done else mark.step
    last = mark.step if done else mark.previous
    return last - last % block_width(unit, level)
