"""Reads of the database as answers: what pages and routes ask."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

from sqlalchemy import ColumnElement, and_, or_, select

from roundoff.wire import (
    Advised,
    Alert,
    AlertPage,
    AlertState,
    Comparison,
    Finding,
    Forecast,
    HeadroomHistory,
    Heatmap,
    LayerHealth,
    RunPage,
    RunState,
    RunSummary,
    Series,
)

from ..database import Database
from ..models import AlertRow, LayerRow, Run, Scope
from .buckets import apart, window
from .headroom import read_advice, read_forecast, read_headroom
from .heatmap import read_heatmap
from .orders import NO_CURSOR, SORTS, cursor_of, tagged
from .problems import FieldError
from .runs import find_run, page
from .series import Asked, layer_ids, read_series
from .summary import layer_health, moment, summaries

ALERT_CURSOR = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?_[0-9]{1,9}_[0-9]{1,9}")
"""What the cursors of the list of alerts look like."""

MAX_LIMIT = 500
"""Rows in one page of an answer."""


MOST_COMPARED = 10


class Query:
    """Implements `roundoff_dashboards.source.Source` on a database; `clock` is the server's, in seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def runs(
        self,
        *,
        project: str | None = None,
        state: str | None = None,
        q: str | None = None,
        tag: str | None = None,
        sort: str = "newest",
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs in an order of `SORTS`; `q` searches project, name and id.

        Raises `FieldError` for a state, order or cursor that is none.
        """
        limit, now = _limit(limit), self._clock()
        order = SORTS[_one_of("sort", sort, tuple(SORTS))]
        query = order.apply(select(Run, order.value), cursor).limit(limit + 1)
        if tag is not None:
            query = query.where(tagged(self._database.is_sqlite, _text("tag", tag)))
        if project is not None:
            query = query.where(Run.project == _text("project", project))
        if state is not None:
            query = query.where(_in_state(state, now))
        if q:
            columns = (Run.project, Run.name, Run.id)
            query = query.where(
                or_(*(column.icontains(_text("q", q), autoescape=True) for column in columns))
            )
        with self._database.read() as session:
            found = session.execute(query).all()
            answers = summaries(session, [run for run, _ in found[:limit]], now)
            last = found[limit - 1] if len(found) > limit else None
            return RunPage(runs=answers, next_cursor=cursor_of(last[1], last[0].run) if last else None)

    def run(self, run_id: str) -> RunSummary:
        """One run as it stands. Raises LookupError."""
        with self._database.read() as session:
            return summaries(session, [find_run(session, run_id)], self._clock())[0]

    def version(self, run_id: str) -> str:
        """Another one whenever something that is read of a run may have changed. Raises LookupError."""
        with self._database.read() as session:
            run = find_run(session, run_id)
            return f"{run.run}.{run.version}"

    def layers(self, run_id: str) -> list[LayerHealth]:
        """The layers of a run in model order. Raises LookupError."""
        with self._database.read() as session:
            run = find_run(session, run_id)
            query = (
                select(LayerRow, Scope)
                .outerjoin(Scope, and_(Scope.run == LayerRow.run, Scope.layer == LayerRow.layer))
                .where(LayerRow.run == run.run)
                .order_by(LayerRow.layer)
            )
            return [layer_health(layer, scope) for layer, scope in session.execute(query)]

    def series(
        self,
        run_id: str,
        metric: str,
        *,
        layer: str | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        max_points: int = 2000,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Series:
        """A figure over steps, of the merged view, or of one attempt or rank.

        Raises LookupError for an unknown run, metric, scalar, layer or attempt.
        """
        _text("metric", metric)
        asked = Asked(metric, None if layer is None else _text("layer", layer), max(1, max_points))
        with self._database.read() as session:
            run = find_run(session, run_id)
            view = apart(window(session, run, from_step, to_step), attempt, rank)
            return read_series(session, run, view, asked)

    def heatmap(self, run_id: str, metric: str, *, max_steps: int = 400, max_layers: int = 200) -> Heatmap:
        """A figure for layers × step buckets, worst layers first. Raises LookupError."""
        with self._database.read() as session:
            run = find_run(session, run_id)
            return read_heatmap(
                session, run, window(session, run), metric, max(1, max_steps), max(1, max_layers)
            )

    def compare(
        self, run_ids: Sequence[str], metric: str, *, layer: str | None = None, max_points: int = 1000
    ) -> Comparison:
        """One figure of two to ten runs. Raises LookupError, and `FieldError` for another number of runs."""
        if not 2 <= len(set(run_ids)) == len(run_ids) <= MOST_COMPARED:
            raise FieldError("runs", f"name 2 to {MOST_COMPARED} different runs, joined by commas")
        found = [self.series(run_id, metric, layer=layer, max_points=max_points) for run_id in run_ids]
        return Comparison(metric=metric, layer=layer, runs=found)

    def headroom(
        self, run_id: str, *, layer: str | None = None, step: int | None = None, max_steps: int = 100
    ) -> HeadroomHistory:
        """Histograms over steps; with `step` the last one up to there alone. Raises LookupError."""
        asked = None if layer is None else _text("layer", layer)
        with self._database.read() as session:
            run = find_run(session, run_id)
            every = session.scalars(select(LayerRow.layer).where(LayerRow.run == run.run)).all()
            layers = every if asked is None else layer_ids(session, run, asked)
            view = window(session, run, None, step)
            return read_headroom(
                session, run, view, layers, asked, 1 if step is not None else max(1, max_steps)
            )

    def forecast(self, run_id: str) -> Forecast:
        """What lower learning rates would lose. Raises LookupError, also before there are histograms."""
        with self._database.read() as session:
            run = find_run(session, run_id)
            return read_forecast(session, run, window(session, run))

    def findings(self, run_id: str) -> list[Finding]:
        """What the preflight of the newest attempt has found. Raises LookupError."""
        with self._database.read() as session:
            return [Finding.model_validate(one) for one in find_run(session, run_id).findings]

    def advice(self, run_id: str) -> Advised:
        """What every strategy would have lost. Raises LookupError, also where there is nothing to compare yet."""
        with self._database.read() as session:
            run = find_run(session, run_id)
            return read_advice(session, run, window(session, run))

    def alerts(
        self,
        *,
        run_id: str | None = None,
        project: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AlertPage:
        """Alerts, newest first. Raises LookupError for an unknown run, `FieldError` for a bad state or cursor."""
        limit = _limit(limit)
        newest = (AlertRow.created_at.desc(), AlertRow.run.desc(), AlertRow.number.desc())
        query = select(AlertRow, Run).join(Run, Run.run == AlertRow.run).order_by(*newest).limit(limit + 1)
        if project is not None:
            query = query.where(Run.project == _text("project", project))
        if state is not None:
            query = query.where(AlertRow.state == _one_of("state", state, get_args(AlertState)))
        if cursor is not None:
            query = query.where(_before(cursor))
        with self._database.read() as session:
            if run_id is not None:
                query = query.where(AlertRow.run == find_run(session, run_id).run)
            found = session.execute(query).all()
            names = _layer_names(session, [row for row, _ in found])
            answers = [_alert(row, run, names) for row, run in found[:limit]]
            last = found[limit - 1][0] if len(found) > limit else None
        return AlertPage(
            alerts=answers, next_cursor=f"{last.created_at!r}_{last.run}_{last.number}" if last else None
        )


def _limit(limit: int) -> int:
    return max(1, min(limit, MAX_LIMIT))


def _text(field: str, value: str) -> str:
    if "\x00" in value:
        raise FieldError(field, "the character NUL cannot be in a name")
    return value


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise FieldError(field, f"{value!r} is none of {', '.join(known)}")
    return value


def _in_state(state: str, now: float) -> ColumnElement[bool]:
    _one_of("state", state, get_args(RunState))
    broken_promise = Run.heard_at + Run.promise_s < now
    if state == "stale":
        return and_(Run.state == "running", broken_promise)
    return and_(Run.state == "running", ~broken_promise) if state == "running" else Run.state == state


def _before(cursor: str) -> ColumnElement[bool]:
    if not ALERT_CURSOR.fullmatch(cursor):
        raise FieldError("cursor", f"{cursor!r} {NO_CURSOR}")
    created, run, number = cursor.split("_")
    at, key = float(created), (int(run), int(number))
    same_time = and_(
        AlertRow.created_at == at,
        or_(AlertRow.run < key[0], and_(AlertRow.run == key[0], AlertRow.number < key[1])),
    )
    return or_(AlertRow.created_at < at, same_time)


def _layer_names(session: Any, alerts: list[AlertRow]) -> dict[tuple[int, int], str]:
    wanted = {(alert.run, layer) for alert in alerts for layer in alert.layers}
    if not wanted:
        return {}
    query = select(LayerRow.run, LayerRow.layer, LayerRow.name).where(
        LayerRow.run.in_({run for run, _ in wanted}), LayerRow.layer.in_({layer for _, layer in wanted})
    )
    return {(run, layer): name for run, layer, name in session.execute(query)}


def _alert(row: AlertRow, run: Run, names: dict[tuple[int, int], str]) -> Alert:
    return Alert(
        id=f"{run.id}.{row.number}",
        project=run.project,
        run_id=run.id,
        run_name=run.name,
        rule=row.rule,
        severity=row.severity,
        state=row.state,
        model=row.model,
        layers=[names[row.run, layer] for layer in row.layers],
        layer_count=row.layer_count,
        headline=row.headline,
        cure=row.cure,
        since_step=row.since_step,
        fired_step=row.fired_step,
        resolved_step=row.resolved_step,
        fired_at=None if row.fired_at is None else moment(row.fired_at),
        resolved_at=None if row.resolved_at is None else moment(row.resolved_at),
        reason=row.reason,
        page=page(run.id),
    )
