"""Is the database whole? What one row says of another must be there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import Session

from ..database import Database, explained
from ..models import (
    Block,
    GroupSample,
    HeadroomSample,
    LayerRow,
    LayerSample,
    ModelSample,
    Removal,
    Run,
    ScalarName,
    ScalarValue,
    Strip,
)


def findings(database: Database) -> list[str]:
    """Faults in words; empty if there are none. Raises `DatabaseUnusableError` if it cannot be read."""
    found: list[str] = []
    with explained(database), database.read() as session:
        if database.is_sqlite:
            said = [str(row[0]) for row in session.execute(text("PRAGMA integrity_check(20)"))]
            found += [f"the file is damaged: {line}" for line in said if line != "ok"]
        for table in (LayerSample, ModelSample, HeadroomSample, GroupSample, ScalarValue, Block, Strip):
            known = select(Run.run).where(Run.run == table.run).exists()
            orphans = _count(session, table, ~known)
            if orphans:
                found.append(f"{orphans} rows of {table.__tablename__} belong to no run")
        nameless = (
            (LayerSample, LayerSample.layer, LayerRow, LayerRow.layer),
            (ScalarValue, ScalarValue.scalar, ScalarName, ScalarName.scalar),
        )
        for rows, key, names, number in nameless:
            known = select(names.run).where(names.run == rows.run, number == key).exists()
            orphans = _count(session, rows, ~known)
            if orphans:
                found.append(f"{orphans} rows of {rows.__tablename__} have no name")
    return found


def _count(session: Session, table: Any, condition: ColumnElement[bool]) -> int:
    """Rows that are at fault: those of a deleted run are on their way out."""
    going = select(Removal.run).where(Removal.run == table.run).exists()
    return session.scalar(select(func.count()).select_from(table).where(condition, ~going)) or 0
