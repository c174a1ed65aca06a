"""Evaluate the rule at ingest: in step order, once, in the transaction that stores the samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import from_json
from sqlalchemy import Text, cast, func, literal, select
from sqlalchemy.orm import Session

from roundoff.metrics import COUNTS, WARMUP_STEPS, Track, cure
from roundoff.metrics.cures import is_judged

from ..database.upsert import replacing
from ..models import MODEL, AlertRow, Attempt, GroupSample, LayerRow, LayerSample, ModelSample, Run, Scope
from .binned import Columns, Floats, Ints
from .buckets import summed
from .stagnation import RULE, headline
from .tracks import NAMES, Evidence, Flags, Tracks

NAMED = 50
"""Worst layers that an alert keeps by name; it counts them all."""


READ = tuple(name for name in NAMES if name != "samples")
"""The columns that a verdict and its causes read."""


@dataclass(frozen=True, slots=True)
class Span:
    """Steps of one attempt that have become complete: low < step ≤ high, on these ranks."""

    attempt: int
    ranks: frozenset[int]
    low: int
    high: int


class Samples(NamedTuple):
    """Rows of layers, and of the model as layer `MODEL`, in any order; `columns` has those of `READ` at least."""

    layer: Ints
    step: Ints
    columns: Columns


class Named(NamedTuple):
    """What an alert says of a layer."""

    name: str
    strategy: str


@dataclass(slots=True)
class Evaluation:
    """One run's scopes and its open alert while samples are read."""

    session: Session
    run: Run
    now: float
    tracks: Tracks
    group: Ints
    judged: Flags
    """By layer id, whether anything is known of what was attempted there; of the model, whether of any layer."""
    alert: AlertRow | None
    changed: bool = False

    def step(self, evidence: Evidence) -> None:
        """Read all samples of one step, then move the alert."""
        step = evidence.step
        self.tracks.advance(evidence)
        if self.tracks.firing.any():
            self._fire(step)
        elif self.alert is not None and self.alert.state == "firing":
            self._resolve(step, "descent efficiency is above the clear threshold again")
        elif self.tracks.pending.any():
            self.alert = self.alert or self._open(step)
        elif self.alert is not None:
            self._drop()

    def _open(self, step: int) -> AlertRow:
        since = self._since(self.tracks.firing | self.tracks.pending, step)
        newest = (
            self.session.scalar(select(func.max(AlertRow.number)).where(AlertRow.run == self.run.run)) or 0
        )
        alert = AlertRow(
            run=self.run.run,
            number=newest + 1,
            rule=RULE,
            severity="warning",
            state="pending",
            model=False,
            layers=[],
            layer_count=0,
            headline="",
            cure="",
            since_step=since,
            created_at=self.now,
        )
        self._describe(alert)
        self.session.add(alert)
        self.session.flush()
        self.changed = True
        return alert

    def _fire(self, step: int) -> None:
        self.alert = self.alert or self._open(step)
        if self.alert.state == "pending":
            self.alert.since_step = self._since(self.tracks.firing, self.alert.since_step)
            self.alert.state, self.alert.fired_step, self.alert.fired_at = "firing", step, self.now
            self._describe(self.alert)
            self.changed = True

    def _since(self, scopes: Flags, otherwise: int) -> int:
        """The first step at which one of the scopes began to stall."""
        since = self.tracks.since[scopes & (self.tracks.since >= 0)]
        return int(since.min()) if len(since) else otherwise

    def _resolve(self, step: int | None, reason: str) -> None:
        assert self.alert is not None
        self.alert.state, self.alert.resolved_step, self.alert.resolved_at = "resolved", step, self.now
        self.alert.reason = reason
        self.session.flush()
        self.alert, self.changed = None, True

    def _drop(self) -> None:
        """A pending alert that did not come to fire leaves no trace."""
        self.session.delete(self.alert)
        self.session.flush()
        self.alert, self.changed = None, True

    def _describe(self, alert: AlertRow) -> None:
        """Name what is affected now: the firing scopes, or the pending ones before any fires."""
        affected = self.tracks.watched(self.tracks.firing)
        affected = affected or self.tracks.watched(self.tracks.pending)
        layers = sorted((s for s in affected if s.layer != MODEL), key=lambda s: s.badness)
        alert.model = any(s.layer == MODEL for s in affected)
        alert.severity = "critical" if alert.model else "warning"
        alert.layers, alert.layer_count = [s.layer for s in layers[:NAMED]], len(layers)
        known = self._known_layers()
        names = [known[s.layer].name for s in layers[:3]]
        model = next((s for s in affected if s.layer == MODEL), None)
        alert.headline = headline(model, alert.model, layers, names, len(known), alert.since_step)
        concerned = [known[s.layer] for s in layers] or list(known.values())
        advice = cure(layer.strategy for layer in concerned)
        alert.cure = "" if advice is None else advice.text

    def _known_layers(self) -> dict[int, Named]:
        query = select(LayerRow.layer, LayerRow.name, LayerRow.strategy).where(LayerRow.run == self.run.run)
        return {layer: Named(name, strategy) for layer, name, strategy in self.session.execute(query)}

    def save(self) -> None:
        """Write back what was touched; the open alert speaks of the present."""
        touched = np.flatnonzero(self.tracks.touched)
        if self.alert is not None and len(touched):
            self._describe(self.alert)
        rows = [{"run": self.run.run, **row} for row in self.tracks.stored(touched)]
        if rows:
            self.session.execute(replacing(self.session, Scope.__table__), rows)  # type: ignore[arg-type]

    def close(self, reason: str) -> None:
        """End of the run: what fired is resolved for this reason, what was pending is dropped."""
        tracks = self.tracks
        ended = tracks.firing | (tracks.streak > 0)
        tracks.firing[ended], tracks.streak[ended], tracks.touched[ended] = False, 0, True
        if self.alert is not None and self.alert.state == "firing":
            self._resolve(self.run.step, reason)
        elif self.alert is not None:
            self._drop()


def begin(session: Session, run: Run, now: float) -> Evaluation:
    """Load where the run's scopes and its open alert stand."""
    layers = session.execute(
        select(LayerRow.layer, LayerRow.group_index, LayerRow.strategy).where(LayerRow.run == run.run)
    ).all()
    group = np.zeros(max((layer for layer, _, _ in layers), default=0) + 1, dtype="i8")
    judged = np.zeros(len(group), dtype=bool)
    for layer, number, strategy in layers:
        group[layer], judged[layer] = number, is_judged(strategy)
    judged[MODEL] = not layers or judged.any()
    tracks = Tracks(len(group) - 1)
    columns = [column for column in Scope.__table__.columns if column.name != "track"]
    text = cast(Scope.__table__.c.track, Text).label("text")
    rows = session.execute(select(*columns, text).where(Scope.run == run.run)).all()
    tracks.load(rows, from_json("[" + ",".join(row.text for row in rows) + "]"))
    alert = session.scalar(
        select(AlertRow).where(AlertRow.run == run.run, AlertRow.rule == RULE, AlertRow.state != "resolved")
    )
    return Evaluation(session, run, now, tracks, group, judged, alert)


def evaluate(evaluation: Evaluation, span: Span, samples: Samples | None = None) -> None:
    """Read the complete steps of `span` after the warm-up, in step order.

    `samples` are all that there are of its steps, if the caller has them; else the database is asked.
    """
    session, run = evaluation.session, evaluation.run
    first = session.scalar(select(func.min(Attempt.first_step)).where(Attempt.run == run.run)) or 0
    low = max(span.low, first + WARMUP_STEPS - 1)
    if low >= span.high:
        return
    rates = _rates(session, run, span, low)
    whole = _whole_steps(session, run, span, low)
    found = samples or _samples(session, run, span, low)
    order = np.argsort(found.step, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(found.step[order])) + 1):
        step = int(found.step[rows[0]]) if len(rows) else low
        if step > low and (whole is None or step in whole):
            rows = rows[evaluation.judged[found.layer[rows]]]
            layer = found.layer[rows]
            columns = {name: found.columns[name][rows] for name in READ}
            lr = _rates_at(rates, step, layer, evaluation.group)
            evaluation.step(Evidence(step, layer, columns, lr))


def _rates_at(rates: Rates, step: int, layers: Ints, group: Ints) -> Floats:
    """The learning rate of each layer at a step, the highest for the model; NaN where unknown."""
    of_group = {
        number: rates.of_group.get((number, step), math.nan) for number in np.unique(group[layers]).tolist()
    }
    lr = np.array([of_group[number] for number in group[layers].tolist()])
    lr[layers == MODEL] = rates.highest.get(step, math.nan)
    return lr


def _whole_steps(session: Session, run: Run, span: Span, low: int) -> set[int] | None:
    """Steps that every sampling rank has sent, for a part of a sum says nothing; None for a single rank."""
    if len(span.ranks) == 1:
        return None
    query = select(ModelSample.step).where(*_within(ModelSample, run, span, low)).group_by(ModelSample.step)
    return set(session.scalars(query.having(func.count() == len(span.ranks))))


class Rates(NamedTuple):
    """Learning rates by (group, step), and the highest of any group by step."""

    of_group: dict[tuple[int, int], float]
    highest: dict[int, float]


def _rates(session: Session, run: Run, span: Span, low: int) -> Rates:
    groups = {*session.scalars(select(LayerRow.group_index).where(LayerRow.run == run.run).distinct())}
    rows = session.execute(
        select(GroupSample.group_index, GroupSample.step, GroupSample.lr)
        .where(*_within(GroupSample, run, span, low), GroupSample.group_index.in_(groups))
        .order_by(GroupSample.rank.desc())
    )
    rates = Rates({}, {})
    for group, step, lr in rows:
        rates.of_group[group, step] = math.nan if lr is None else lr
    for (_, step), lr in rates.of_group.items():
        rates.highest[step] = max(lr, rates.highest.get(step, lr))
    return rates


def _within(
    table: type[LayerSample | ModelSample | GroupSample], run: Run, span: Span, low: int
) -> list[Any]:
    return [
        table.run == run.run,
        table.attempt == span.attempt,
        table.rank.in_(span.ranks),
        table.step > low,
        table.step <= span.high,
    ]


def _samples(session: Session, run: Run, span: Span, low: int) -> Samples:
    """The span's samples, ranks summed."""
    model = (
        select(literal(MODEL), ModelSample.step, *summed(ModelSample, READ))
        .where(*_within(ModelSample, run, span, low))
        .group_by(ModelSample.step)
    )
    # Each layer by its id: else SQLite may read the whole run, its key being (run, layer, attempt, rank, step).
    known = select(LayerRow.layer).where(LayerRow.run == run.run)
    layers = (
        select(LayerSample.layer, LayerSample.step, *summed(LayerSample, READ))
        .where(*_within(LayerSample, run, span, low), LayerSample.layer.in_(known))
        .group_by(LayerSample.layer, LayerSample.step)
    )
    rows = [*session.execute(model), *session.execute(layers)]
    columns = list(zip(*rows, strict=True)) or [()] * (2 + len(READ))
    arrays: Columns = {
        name: np.array(column, dtype="i8" if name in COUNTS else "f8")
        for name, column in zip(READ, columns[2:], strict=True)
    }
    return Samples(np.array(columns[0], dtype="i8"), np.array(columns[1], dtype="i8"), arrays)


def track_of(data: dict[str, Any]) -> Track:
    """A stored track; non-finite sums lie in JSON as strings."""
    totals = {
        name: {key: float(value) if isinstance(value, str) else value for key, value in data[name].items()}
        for name in ("previous", "current", "silent")
        if name in data  # an earlier version kept the first two
    }
    return Track.from_dict(data | totals)
