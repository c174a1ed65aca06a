"""Runs and layers as they stand, for a page of runs in a handful of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, case, func, select
from sqlalchemy.orm import Session

from roundoff.metrics import (
    State,
    Totals,
    Track,
    descent_efficiency,
    effective_lr,
    lost_fraction,
    run_state,
    run_verdict,
)
from roundoff.metrics.cures import unmarked
from roundoff.wire import LayerHealth, RunState, RunSummary

from ..models import MODEL, AlertRow, Attempt, LayerRow, Run, Scope, Writer
from .alerts import track_of
from .runs import page
from .series import float_of

WORST = 5
"""Layers that a summary names."""


def moment(seconds: float) -> datetime:
    """As a date in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def state_of(run: Run, now: float) -> RunState:
    """`stale` once a running run has broken its promise; data heals it."""
    if run.state == "running" and now - run.heard_at > run.promise_s:
        return "stale"
    return run.state  # type: ignore[return-value]


def layer_health(layer: LayerRow, scope: Scope | None) -> LayerHealth:
    """One layer as it stands."""
    return LayerHealth(
        id=layer.layer,
        name=layer.name,
        shape=layer.shape,
        numel=layer.numel,
        dtype=layer.dtype,
        strategy=layer.strategy,
        health=scope.health if scope else None,
        lost_fraction=scope.lost_fraction if scope else None,
        descent_efficiency=_efficiency(scope) if scope else None,
    )


def _efficiency(scope: Scope) -> float | None:
    """Over the window; SQLite has kept a NaN as NULL, and only a layer that is idle has none."""
    if scope.efficiency is None and scope.health not in (None, "idle"):
        found: float | None = descent_efficiency(track_of(scope.track).window)
        return found
    return scope.efficiency


@dataclass(slots=True)
class _Hurt:
    """Layers of one run that stall or are broken: how many, and the worst of them."""

    count: int
    worst: list[LayerHealth]
    since: int | None
    tracks: list[dict[str, Any]]
    """As stored, of the worst of them."""

    @property
    def names(self) -> list[str]:
        """As many entries as there are layers; only the worst have their name."""
        return [layer.name for layer in self.worst] + [""] * (self.count - len(self.worst))

    @property
    def window(self) -> Totals:
        """The sums over the windows of the worst of them."""
        return sum((track_of(track).window for track in self.tracks), Totals())


NOTHING = _Hurt(0, [], None, [])


def summaries(session: Session, runs: Sequence[Run], now: float) -> list[RunSummary]:
    """The runs as they stand, in the given order."""
    keys = [run.run for run in runs]
    attempts = _by_run(
        session, select(Attempt.run, func.count()).where(Attempt.run.in_(keys)).group_by(Attempt.run)
    )
    layers = _by_run(
        session, select(LayerRow.run, func.count()).where(LayerRow.run.in_(keys)).group_by(LayerRow.run)
    )
    firing = _by_run(
        session,
        select(AlertRow.run, func.count())
        .where(AlertRow.run.in_(keys), AlertRow.state == "firing")
        .group_by(AlertRow.run),
    )
    strategies, dropped = _strategies(session, keys), _dropped(session, keys)
    models = {
        scope.run: scope
        for scope in session.scalars(select(Scope).where(Scope.run.in_(keys), Scope.layer == MODEL))
    }
    hurt = _hurt(session, keys)
    return [
        _summary(
            run,
            now,
            models.get(run.run),
            hurt.get((run.run, "stalling"), NOTHING),
            hurt.get((run.run, "broken"), NOTHING),
            {
                "attempts": attempts.get(run.run, 0),
                "layers": layers.get(run.run, 0),
                "alerts_firing": firing.get(run.run, 0),
                "strategy": "+".join(strategies.get(run.run, [])),
                "dropped": dropped.get(run.run, {}),
            },
        )
        for run in runs
    ]


def _by_run(session: Session, query: Any) -> dict[int, Any]:
    return {run: value for run, value in session.execute(query)}  # noqa: C416


def _summary(
    run: Run, now: float, model: Scope | None, stalling: _Hurt, broken: _Hurt, counted: dict[str, Any]
) -> RunSummary:
    health: State | None = model.health if model else None  # type: ignore[assignment]
    track = track_of(model.track) if model else Track()
    window = track.window
    since = [model.since_step] if model and model.health == "stalling" else [stalling.since]
    verdict = run_verdict(
        health,
        window,
        stalling.names,
        broken.names,
        counted["layers"],
        since[0],
        hurt=None if health == "stalling" else stalling.window,
        reason=track.idle_reason(run.lr),
        lr=run.lr,
    )
    return RunSummary(
        id=run.id,
        project=run.project,
        name=run.name,
        state=state_of(run, now),
        health=run_state(health, ["stalling"] * bool(stalling.count) + ["broken"] * bool(broken.count)),  # type: ignore[arg-type]
        headline=verdict.headline,
        explanation=verdict.explanation,
        step=run.step,
        first_seen=moment(run.created_at),
        last_seen=moment(run.heard_at),
        config=run.config,
        tags=run.tags,
        lr=run.lr,
        loss=None if run.loss_bits is None else float_of(run.loss_bits),
        spark=[float_of(bits) for _, bits in run.spark],
        lost_fraction=lost_fraction(window),
        descent_efficiency=descent_efficiency(window),
        effective_lr=effective_lr(window, run.lr),
        layers_stalling=stalling.count,
        worst_layers=[*broken.worst, *stalling.worst][:WORST],
        page=page(run.id),
        **counted,
    )


def _strategies(session: Session, keys: list[int]) -> dict[int, list[str]]:
    query = (
        select(LayerRow.run, LayerRow.strategy, func.min(LayerRow.layer))
        .where(LayerRow.run.in_(keys), LayerRow.strategy != "")
        .group_by(LayerRow.run, LayerRow.strategy)
        .order_by(func.min(LayerRow.layer))
    )
    found: dict[int, list[str]] = {}
    for run, strategy, _ in session.execute(query):
        names = found.setdefault(run, [])
        if (name := unmarked(strategy)) not in names:
            names.append(name)
    return found


def _dropped(session: Session, keys: list[int]) -> dict[int, dict[str, int]]:
    """By run and reason, added over writers: each counts what it has dropped so far."""
    found: dict[int, dict[str, int]] = {}
    for run, counts in session.execute(select(Writer.run, Writer.dropped).where(Writer.run.in_(keys))):
        total = found.setdefault(run, {})
        for reason, count in counts.items():
            total[reason] = total.get(reason, 0) + count
    return found


def _hurt(session: Session, keys: list[int]) -> dict[tuple[int, str], _Hurt]:
    """(run, health) → its layers that stall or are broken, the worst by efficiency."""
    part = [Scope.run, Scope.health]
    undefined = case((Scope.efficiency.is_(None), 1), else_=0)
    place = func.row_number().over(
        partition_by=part, order_by=[undefined, Scope.efficiency, Scope.lost_fraction.desc(), Scope.layer]
    )
    ranked = (
        select(
            Scope.run.label("run"),
            Scope.layer.label("layer"),
            place.label("place"),
            func.count().over(partition_by=part).label("count"),
            func.min(Scope.since_step).over(partition_by=part).label("since"),
        )
        .where(Scope.run.in_(keys), Scope.layer != MODEL, Scope.health.in_(("stalling", "broken")))
        .subquery()
    )
    query = (
        select(ranked.c.count, ranked.c.since, LayerRow, Scope)
        .join(LayerRow, and_(LayerRow.run == ranked.c.run, LayerRow.layer == ranked.c.layer))
        .join(Scope, and_(Scope.run == ranked.c.run, Scope.layer == ranked.c.layer))
        .where(ranked.c.place <= WORST)
        .order_by(ranked.c.run, ranked.c.place)
    )
    found: dict[tuple[int, str], _Hurt] = {}
    for count, since, layer, scope in session.execute(query):
        group = found.setdefault((scope.run, str(scope.health)), _Hurt(count, [], since, []))
        group.tracks.append(scope.track)
        group.worst.append(layer_health(layer, scope))
    return found
