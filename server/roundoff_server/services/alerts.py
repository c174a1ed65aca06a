"""Evaluate the rule at ingest: in step order, once, in the transaction that stores the samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from roundoff.metrics import COUNTS, WARMUP_STEPS, Track, cure

from ..database.upsert import replacing
from ..models import MODEL, AlertRow, Attempt, GroupSample, LayerRow, LayerSample, ModelSample, Run, Scope
from .stagnation import RULE, Watched, headline

NAMED = 50
"""Worst layers that an alert keeps by name; it counts them all."""


class Evidence(NamedTuple):
    """The columns that a verdict and its causes read, ranks summed."""

    numel: int
    zero_grad: int
    attempted: int
    lost: int
    nonfinite: int
    sum_uu: float
    sum_ua: float
    expected_roundings: float
    invisible: int
    underflowed: int
    decay_attempted: int
    decay_lost: int
    v_attempted: int
    v_stuck: int
    v_stuck_high: int
    v_underflowed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Span:
    """Steps of one attempt that have become complete: low < step ≤ high, on these ranks."""

    attempt: int
    ranks: frozenset[int]
    low: int
    high: int


@dataclass(slots=True)
class Evaluation:
    """One run's scopes and its open alert while samples are read."""

    session: Session
    run: Run
    now: float
    scopes: dict[int, Watched]
    layers: dict[int, LayerRow]
    alert: AlertRow | None
    changed: bool = False
    touched: set[int] = field(default_factory=set)

    def step(self, step: int, samples: Iterable[tuple[int, Evidence, float | None]]) -> None:
        """Read all samples of one step, then move the alert."""
        for layer, evidence, lr in samples:
            scope = self.scopes.setdefault(layer, Watched(layer))
            if step > scope.last_step:
                scope.advance(step, evidence, lr)
                self.touched.add(layer)
        if any(scope.firing for scope in self.scopes.values()):
            self._fire(step)
        elif self.alert is not None and self.alert.state == "firing":
            self._resolve(step, "descent efficiency is above the clear threshold again")
        elif any(scope.pending for scope in self.scopes.values()):
            self.alert = self.alert or self._open(step)
        elif self.alert is not None:
            self._drop()

    def _open(self, step: int) -> AlertRow:
        affected = [s for s in self.scopes.values() if s.firing or s.pending]
        since = min((s.since_step for s in affected if s.since_step is not None), default=step)
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
            firing = [s.since_step for s in self.scopes.values() if s.firing and s.since_step is not None]
            self.alert.since_step = min(firing, default=self.alert.since_step)
            self.alert.state, self.alert.fired_step, self.alert.fired_at = "firing", step, self.now
            self._describe(self.alert)
            self.changed = True

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
        firing = [s for s in self.scopes.values() if s.firing]
        affected = firing or [s for s in self.scopes.values() if s.pending]
        layers = sorted((s for s in affected if s.layer != MODEL), key=lambda s: s.badness)
        alert.model = any(s.layer == MODEL for s in affected)
        alert.severity = "critical" if alert.model else "warning"
        alert.layers, alert.layer_count = [s.layer for s in layers[:NAMED]], len(layers)
        names = [self.layers[s.layer].name for s in layers[:3]]
        alert.headline = headline(
            self.scopes.get(MODEL), alert.model, layers, names, len(self.layers), alert.since_step
        )
        concerned = [self.layers[s.layer] for s in layers] or list(self.layers.values())
        advice = cure(layer.strategy for layer in concerned)
        alert.cure = "" if advice is None else advice.text

    def save(self) -> None:
        """Write back what was touched; the open alert speaks of the present."""
        if self.alert is not None and self.touched:
            self._describe(self.alert)
        rows = [_stored(self.run.run, self.scopes[layer]) for layer in sorted(self.touched)]
        if rows:
            self.session.execute(replacing(self.session, Scope.__table__), rows)  # type: ignore[arg-type]

    def close(self, reason: str) -> None:
        """End of the run: what fired is resolved for this reason, what was pending is dropped."""
        for scope in self.scopes.values():
            if scope.firing or scope.streak:
                scope.firing, scope.streak = False, 0
                self.touched.add(scope.layer)
        if self.alert is not None and self.alert.state == "firing":
            self._resolve(self.run.step, reason)
        elif self.alert is not None:
            self._drop()


def begin(session: Session, run: Run, now: float) -> Evaluation:
    """Load where the run's scopes and its open alert stand."""
    scopes = session.execute(select(Scope.__table__).where(Scope.run == run.run))
    layers = session.scalars(select(LayerRow).where(LayerRow.run == run.run))
    alert = session.scalar(
        select(AlertRow).where(AlertRow.run == run.run, AlertRow.rule == RULE, AlertRow.state != "resolved")
    )
    return Evaluation(
        session,
        run,
        now,
        {row.layer: _watched(row) for row in scopes},
        {row.layer: row for row in layers},
        alert,
    )


def evaluate(evaluation: Evaluation, span: Span) -> None:
    """Read the complete steps of `span` after the warm-up, in step order."""
    session, run = evaluation.session, evaluation.run
    first = session.scalar(select(func.min(Attempt.first_step)).where(Attempt.run == run.run)) or 0
    low = max(span.low, first + WARMUP_STEPS - 1)
    if low >= span.high:
        return
    rates = _rates(session, run, span, low)
    steps: dict[int, list[tuple[int, Evidence, float | None]]] = {}
    for layer, step, evidence in _samples(session, run, span, low):
        if layer == MODEL:
            lr = rates.highest.get(step)
        else:
            lr = rates.of_group.get((evaluation.layers[layer].group_index, step))
        steps.setdefault(step, []).append((layer, evidence, lr))
    whole = _whole_steps(session, run, span, low)
    for step in sorted(steps):
        if whole is None or step in whole:
            evaluation.step(step, steps[step])


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


def _samples(session: Session, run: Run, span: Span, low: int) -> Iterable[tuple[int, int, Evidence]]:
    def summed(table: type[LayerSample] | type[ModelSample]) -> list[Any]:
        return [func.sum(getattr(table, name)) for name in Evidence._fields]

    model = (
        select(ModelSample.step, *summed(ModelSample))
        .where(*_within(ModelSample, run, span, low))
        .group_by(ModelSample.step)
    )
    for step, *values in session.execute(model):
        yield MODEL, step, _evidence(values)
    # From layers, so that SQLite seeks (run, layer, attempt, rank, step) instead of reading the whole run.
    layers = (
        select(LayerSample.layer, LayerSample.step, *summed(LayerSample))
        .select_from(LayerRow)
        .join(LayerSample, (LayerSample.run == LayerRow.run) & (LayerSample.layer == LayerRow.layer))
        .where(LayerRow.run == run.run, *_within(LayerSample, run, span, low))
        .group_by(LayerSample.layer, LayerSample.step)
    )
    for layer, step, *values in session.execute(layers):
        yield layer, step, _evidence(values)


def _evidence(values: list[Any]) -> Evidence:
    return Evidence._make(
        int(value or 0) if name in COUNTS else math.nan if value is None else float(value)
        for name, value in zip(Evidence._fields, values, strict=True)
    )


def _watched(row: Any) -> Watched:
    return Watched(
        row.layer,
        track_of(row.track),
        row.last_step,
        row.health,
        row.streak,
        row.since_step,
        bool(row.firing),
    )


def track_of(data: dict[str, Any]) -> Track:
    """A stored track; non-finite sums lie in JSON as strings."""
    totals = {
        name: {key: float(value) if isinstance(value, str) else value for key, value in data[name].items()}
        for name in ("previous", "current", "silent")
        if name in data  # an earlier version kept the first two
    }
    return Track.from_dict(data | totals)


def _stored(run: int, scope: Watched) -> dict[str, Any]:
    return {
        "run": run,
        "layer": scope.layer,
        "track": scope.track.to_dict(),
        "last_step": scope.last_step,
        "health": scope.health,
        "lost_fraction": scope.lost,
        "efficiency": scope.efficiency,
        "streak": scope.streak,
        "since_step": scope.since_step,
        "firing": scope.firing,
    }
