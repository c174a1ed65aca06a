"""Runs and their attempts: start, resume, end."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from roundoff.wire import WIRE_VERSION, Event, RunChange, RunStart, RunStarted

from ..database.upsert import insert_into
from ..models import Attempt, Resolution, Run, Scope
from . import strips
from .buckets import window
from .problems import FieldError

ENDED = ("finished", "preempted", "crashed")
"""How an attempt may end, the gravest last."""


@dataclass(slots=True)
class Started:
    """The answer, and what listeners should hear."""

    answer: RunStarted
    events: list[Event] = field(default_factory=list)


def page(run_id: str) -> str:
    """The path of a run's page."""
    return f"/runs/{run_id}"


def check_version(version: int) -> None:
    """Raise `FieldError` for a wire version that this server does not read."""
    if version not in (WIRE_VERSION - 1, WIRE_VERSION) or version < 1:
        raise FieldError(
            "version",
            f"{version} is not read by this server, which reads {WIRE_VERSION}; use matching versions of roundoff",
        )


def find_run(session: Session, run_id: str, *, lock: bool = False) -> Run:
    """The run, locked against other writers if asked. Raises LookupError."""
    query = select(Run).where(Run.id == run_id)
    run = session.scalar(query.with_for_update() if lock else query)
    if run is None:
        raise LookupError(f"there is no run {run_id!r}")
    return run


def start(session: Session, run_id: str, body: RunStart, now: float) -> Started:
    """Create the run or resume it; the same token gets the same attempt. Raises `FieldError`."""
    check_version(body.version)
    fresh = insert_into(session, Run.__table__).values(  # type: ignore[arg-type]
        id=run_id,
        project=body.project,
        name=body.name,
        config=body.config,
        tags=body.tags,
        client=body.client,
        state="running",
        created_at=now,
        heard_at=now,
        promise_s=body.promise_s,
        spark=[],
        spark_stride=1,
        spark_seen=0,
    )
    session.execute(fresh.on_conflict_do_nothing(index_elements=["id"]))
    run = find_run(session, run_id, lock=True)
    known = session.scalar(select(Attempt).where(Attempt.run == run.run, Attempt.token == body.token))
    attempt = known or _new_attempt(session, run, body, now)
    run.version += 0 if known else 1
    if attempt.number == latest_attempt(session, run):
        run.heard_at, run.promise_s = max(now, run.heard_at), body.promise_s
    answer = RunStarted(run_id=run.id, attempt=attempt.number, page=page(run.id))
    return Started(answer, [] if known else [Event(run_id=run.id, kind="run", step=run.step)])


def change(session: Session, run_id: str, body: RunChange) -> None:
    """Call a run something else. Raises LookupError."""
    run = find_run(session, run_id, lock=True)
    for name in ("project", "name", "tags"):
        value = getattr(body, name)
        if value is not None:
            setattr(run, name, value)
    run.version += 1


def latest_attempt(session: Session, run: Run) -> int:
    """The newest attempt's number, 0 before the first."""
    return session.scalar(select(func.max(Attempt.number)).where(Attempt.run == run.run)) or 0


def _new_attempt(session: Session, run: Run, body: RunStart, now: float) -> Attempt:
    earlier = session.scalars(select(Attempt).where(Attempt.run == run.run)).all()
    for attempt in earlier:
        ends = attempt.end_step
        attempt.end_step = body.first_step if ends is None else min(ends, body.first_step)
    attempt = Attempt(
        run=run.run,
        number=max((attempt.number for attempt in earlier), default=0) + 1,
        token=body.token,
        first_step=body.first_step,
        end_step=None,
        world_size=body.world_size,
        state="running",
        started_at=now,
    )
    session.add(attempt)
    run.state = "running"
    if earlier:
        run.project, run.name, run.client = body.project, body.name, body.client or run.client
        run.findings = []
        run.config, run.tags = body.config or run.config, body.tags or run.tags
        _rewind(session, run, body.first_step)
        resolution = session.get(Resolution, run.run)
        if resolution is not None:
            strips.cut(session, resolution, window(session, run), body.first_step)
    return attempt


def _rewind(session: Session, run: Run, first_step: int) -> None:
    """Forget what lies beyond the new attempt's first step wherever only the newest value is kept."""
    last = first_step - 1
    if run.step is not None and run.step > last:
        run.step = last if last >= 0 else None
    run.spark = [point for point in run.spark if point[0] <= last]
    run.lr_step = None if run.lr_step is None else min(run.lr_step, last)
    run.loss_step = None if run.loss_step is None else min(run.loss_step, last)
    for scope in session.scalars(select(Scope).where(Scope.run == run.run, Scope.last_step > last)):
        scope.last_step = last
