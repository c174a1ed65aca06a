"""Keep the roll-ups of old runs, and let the samples of their layers go."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..database import Database
from ..models import LayerSample, Resolution, Run
from .buckets import FOREVER
from .removal import ROWS, delete_rows
from .samples import ranks_of
from .sealing import Sealing

DAY_S = 24 * 3600


def thin_old(database: Database, days: float, now: float) -> list[str]:
    """Thin the runs that were last heard of more than `days` before `now`. Returns their ids.

    A run of fewer samples than tell how to roll them up stays as it is. What is gone: single steps of layers,
    and ranks apart. What stays: everything of the model, scalars, and buckets of layers of all widths.
    """
    with database.read() as session:
        old = session.execute(
            select(Run.run, Run.id)
            .join(Resolution, Resolution.run == Run.run)
            .where(Run.heard_at < now - days * DAY_S, ~Resolution.thinned, Resolution.unit.is_not(None))
        ).all()
    for run, _ in old:
        thin(database, run)
    return [run_id for _, run_id in old]


def thin(database: Database, run: int) -> None:
    """Roll up the last samples of a run too, then delete them."""
    for attempt in _attempts(database, run):
        while not _rolled_up(database, run, attempt):
            pass
    with database.write() as session:
        _lock(session, run)
        resolution = session.get_one(Resolution, run)
        resolution.thinned = True
    delete_rows(database, LayerSample, ROWS, LayerSample.run == run)


def _attempts(database: Database, run: int) -> list[int]:
    with database.read() as session:
        return list(ranks_of(session, run))


def _rolled_up(database: Database, run: int, attempt: int) -> bool:
    """Go on rolling up an attempt; whether that is all of it."""
    with database.write() as session:
        _lock(session, run)
        ranks = ranks_of(session, run)[attempt]
        return Sealing(session, session.get_one(Resolution, run), attempt, ranks).roll_up(FOREVER, ROWS)


def _lock(session: Session, run: int) -> None:
    session.scalar(select(Run).where(Run.run == run).with_for_update())
