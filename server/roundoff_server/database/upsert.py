"""`INSERT … ON CONFLICT`, which both databases have and SQLAlchemy writes per dialect."""

from __future__ import annotations

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

Insert = postgresql.Insert | sqlite.Insert


def insert_into(session: Session, table: Table) -> Insert:
    """An insert that has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def replacing(session: Session, table: Table) -> Insert:
    """An insert that overwrites a row with the same primary key."""
    statement = insert_into(session, table)
    sets = {
        column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key
    }
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=sets)
