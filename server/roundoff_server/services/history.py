"""The history of a layer or of the model in buckets: from blocks where there are any that fit, else from samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from roundoff.metrics import Metric

from ..models import MODEL, BlockMark, Resolution
from .binned import Binned, joined, nothing
from .blocks import bucket_width, level_for, read_blocks
from .buckets import Extent, Window
from .samples import Scope, ranks_of, read_samples
from .sealing import sealed_to


@dataclass(slots=True)
class History:
    """Reads of one run within a window: `unit` and `marks` say which blocks there are, `ranks` who sends."""

    session: Session
    window: Window
    unit: int | None
    thinned: bool
    marks: dict[int, BlockMark]
    ranks: dict[int, list[int]]
    names: Sequence[str] = field(default_factory=list)
    metrics: Sequence[Metric] = ()

    def read(self, layer: int, width: int) -> Binned:
        """The layer's buckets of `width` steps: sums of `names`, lowest and highest of `metrics`."""
        level = level_for(self.unit, width)
        parts: list[Binned] = []
        for attempt, low, high in self.window.spans():
            if attempt in self.ranks:
                parts += self._cover(
                    Scope(self.window.run, layer, attempt, self.ranks[attempt]), level, low, high
                )
        return joined(parts or [nothing(self.names, self.metrics)], width)

    def width(self, layer: int, span: Extent, points: int) -> int:
        """How wide buckets are that leave at most `points` of them, and that there are."""
        width = span.bucket(points)
        return max(width, self.unit or 1) if self.thinned and layer != MODEL else width

    def extent(self, layer: int, enough: int) -> Extent | None:
        """The first and last step of which there is a sample, and how many, counted up to a little over `enough`.

        A thinned run has no other samples than the model's.
        """
        layer = MODEL if self.thinned else layer
        found = []
        for attempt, low, high in self.window.spans():
            scope = Scope(self.window.run, layer, attempt, self.ranks.get(attempt, []))
            for rank in scope.ranks:
                one = Scope(scope.run, layer, attempt, [rank])
                found.append(_extent(self.session, one, (low, high), enough))
        steps = [extent for extent in found if extent is not None]
        if not steps:
            return None
        first, last = min(extent.first for extent in steps), max(extent.last for extent in steps)
        return Extent(first, last, sum(extent.count for extent in steps))

    def _cover(self, scope: Scope, level: int, low: int, high: int) -> list[Binned]:
        """The steps low … high - 1: whole buckets of `level` from its blocks, what is left over from finer levels."""
        if low >= high:
            return []
        if level == 0 or self.unit is None:
            return [read_samples(self.session, scope, (low, high), self.names, self.metrics)]
        width = bucket_width(self.unit, level)
        begin = -(-low // width) * width
        sealed = sealed_to(self.marks.get(scope.attempt), self.unit, level, scope.layer)
        end = min(high - high % width, sealed)
        if begin >= end:
            return self._cover(scope, level - 1, low, high)
        whole = read_blocks(
            self.session,
            scope.run,
            scope.layer,
            scope.attempt,
            level,
            self.unit,
            (begin, end),
            self.names,
            self.metrics,
        )
        return [
            *self._cover(scope, level - 1, low, begin),
            whole,
            *self._cover(scope, level - 1, end, high),
        ]


def open_history(
    session: Session, window: Window, names: Sequence[str] = (), metrics: Sequence[Metric] = ()
) -> History:
    """The history of a window's run."""
    resolution = session.get(Resolution, window.run)
    # Blocks hold all ranks together.
    unit = None if resolution is None or window.rank is not None else resolution.unit
    thinned = resolution is not None and resolution.thinned
    marks = session.scalars(select(BlockMark).where(BlockMark.run == window.run))
    by_attempt = {mark.attempt: mark for mark in marks}
    ranks = ranks_of(session, window.run, window.rank)
    return History(session, window, unit, thinned, by_attempt, ranks, names, metrics)


def _extent(session: Session, scope: Scope, steps: tuple[int, int], enough: int) -> Extent | None:
    table = scope.table
    conditions = scope.within(steps)
    some = select(table.step).where(*conditions).limit(enough + 1).subquery()
    first, last, count = session.execute(
        select(
            select(table.step).where(*conditions).order_by(table.step.asc()).limit(1).scalar_subquery(),
            select(table.step).where(*conditions).order_by(table.step.desc()).limit(1).scalar_subquery(),
            select(func.count()).select_from(some).scalar_subquery(),
        )
    ).one()
    return None if first is None else Extent(first, last, count)
