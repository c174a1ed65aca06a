"""`INSERT … ON CONFLICT`, which both databases have and SQLAlchemy writes per dialect."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

Insert = postgresql.Insert | sqlite.Insert


def insert_into(session: Session, table: Table) -> Insert:
    """An insert that has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return _insert(session.get_bind().dialect.name, table)


def _insert(dialect: str, table: Table) -> Insert:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def replacing(session: Session, table: Table) -> Insert:
    """An insert that overwrites a row with the same primary key."""
    return _replacing(session.get_bind().dialect.name, table)


@cache
def _replacing(dialect: str, table: Table) -> Insert:
    statement = _insert(dialect, table)
    sets = {
        column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key
    }
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=sets)
