"""Delete runs in bounded memory: at once for whoever asks, then row by row while others read and write."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, delete, select, tuple_
from sqlalchemy.orm import Session

from ..database import Database
from ..database.upsert import insert_into
from ..models import (
    Block,
    GroupSample,
    HeadroomSample,
    LayerSample,
    ModelSample,
    Removal,
    Run,
    ScalarValue,
    Strip,
)
from .runs import find_run

ROWS = 20_000
"""Rows of samples that one transaction deletes; others wait for it no longer than for a batch."""

PAYLOADS = 500
"""Rows with a payload that one transaction deletes."""

LARGE: tuple[tuple[Any, int], ...] = (
    (LayerSample, ROWS),
    (ModelSample, ROWS),
    (ScalarValue, ROWS),
    (GroupSample, ROWS),
    (HeadroomSample, PAYLOADS),
    (Block, PAYLOADS),
    (Strip, PAYLOADS),
)
"""Tables whose rows do not go with the run's own, and how many of them go at a time."""


def remove(session: Session, run_id: str) -> None:
    """Delete a run: from now on it is not there. `sweep` gives its space back. Raises LookupError."""
    run = find_run(session, run_id, lock=True)
    mark = insert_into(session, Removal.__table__).values(run=run.run)  # type: ignore[arg-type]
    session.execute(mark.on_conflict_do_nothing())
    session.execute(delete(Run).where(Run.run == run.run))


def sweep(database: Database) -> int:
    """Delete what is left of deleted runs, also what an earlier call did not finish. Returns how many runs."""
    with database.read() as session:
        gone = session.scalars(select(Removal.run)).all()
    for run in gone:
        for table, at_once in LARGE:
            delete_rows(database, table, at_once, table.run == run)
        with database.write() as session:
            session.execute(delete(Removal).where(Removal.run == run))
    return len(gone)


def delete_rows(database: Database, table: Any, at_once: int, *conditions: ColumnElement[bool]) -> None:
    """Delete the rows of a table for which conditions hold, `at_once` in a transaction."""
    key = list(table.__table__.primary_key)
    some = select(*key).where(*conditions).limit(at_once)
    while True:
        with database.write() as session:
            done: Any = session.execute(delete(table).where(tuple_(*key).in_(some)))
            if done.rowcount < at_once:
                return
