"""Is the database whole? What one row says of another must be there."""

from __future__ import annotations

from sqlalchemy import func, select, text

from ..database import Database, explained
from ..models import (
    GroupSample,
    HeadroomSample,
    LayerRow,
    LayerSample,
    ModelSample,
    Run,
    ScalarName,
    ScalarValue,
)


def findings(database: Database) -> list[str]:
    """Faults in words; empty if there are none. Raises `DatabaseUnusableError` if it cannot be read."""
    found: list[str] = []
    with explained(database), database.read() as session:
        if database.is_sqlite:
            said = [str(row[0]) for row in session.execute(text("PRAGMA integrity_check(20)"))]
            found += [f"the file is damaged: {line}" for line in said if line != "ok"]
        for table in (LayerSample, ModelSample, HeadroomSample, GroupSample, ScalarValue):
            known = select(Run.run).where(Run.run == table.run).exists()
            orphans = session.scalar(select(func.count()).select_from(table).where(~known))
            if orphans:
                found.append(f"{orphans} rows of {table.__tablename__} belong to no run")
        nameless = (
            (LayerSample, LayerSample.layer, LayerRow, LayerRow.layer),
            (ScalarValue, ScalarValue.scalar, ScalarName, ScalarName.scalar),
        )
        for rows, key, names, number in nameless:
            known = select(names.run).where(names.run == rows.run, number == key).exists()
            orphans = session.scalar(select(func.count()).select_from(rows).where(~known))
            if orphans:
                found.append(f"{orphans} rows of {rows.__tablename__} have no name")
    return found
