"""In which order runs are listed, and where a page of such a list ends."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, String, and_, case, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB

from ..models import MODEL, Run, Scope
from .problems import FieldError

NO_CURSOR = "is no cursor of this list; use next_cursor of the page before"


@dataclass(frozen=True, slots=True)
class Order:
    """By a value that no run lacks, then by the run's key, in one direction."""

    value: ColumnElement[Any]
    descending: bool

    def apply(self, query: Select[Any], cursor: str | None) -> Select[Any]:
        """The query in this order, from a cursor on. Raises `FieldError`."""
        key = Run.run.expression
        if cursor is not None:
            value, run = _read(cursor, isinstance(self.value.type, String))
            if self.descending:
                beyond = or_(self.value < value, and_(self.value == value, key < run))
            else:
                beyond = or_(self.value > value, and_(self.value == value, key > run))
            query = query.where(beyond)
        if self.descending:
            return query.order_by(self.value.desc(), key.desc())
        return query.order_by(self.value, key)


def _efficiency() -> ColumnElement[Any]:
    """Of the whole model as it stands; runs that stall or are broken first, those without one last."""
    model = (Scope.run == Run.run, Scope.layer == MODEL)
    health = select(Scope.health).where(*model).scalar_subquery()
    known = select(Scope.efficiency).where(*model).scalar_subquery()
    within = func.coalesce(case((known > 1e6, 1e6), (known < -1e6, -1e6), else_=known), 1e7)
    first = case((health == "broken", -4e7), (health == "stalling", -2e7), else_=0.0)
    return cast(first + within, Double)


SORTS = {
    "newest": Order(Run.run.expression, descending=True),
    "oldest": Order(Run.run.expression, descending=False),
    "seen": Order(Run.heard_at.expression, descending=True),
    "name": Order(func.lower(Run.project + "/" + Run.name).cast(String), descending=False),
    "efficiency": Order(_efficiency(), descending=False),
}
"""Orders by name."""


def cursor_of(value: Any, run: int) -> str:
    """Where a page ends whose last run has this value and key."""
    return base64.urlsafe_b64encode(json.dumps([value, run]).encode()).decode().rstrip("=")


def _read(cursor: str, text: bool) -> tuple[Any, int]:
    try:
        value, run = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, binascii.Error):
        raise FieldError("cursor", f"{cursor!r} {NO_CURSOR}") from None
    known = isinstance(value, str) if text else isinstance(value, (int, float)) and abs(value) < 2**53
    if not known or not isinstance(run, int) or not abs(run) < 2**31:
        raise FieldError("cursor", f"{cursor!r} {NO_CURSOR}")
    return value, run


def tagged(sqlite: bool, tag: str) -> ColumnElement[bool]:
    """Runs that have this tag."""
    if sqlite:
        each = func.json_each(Run.tags).table_valued("value")
        return select(literal(1)).select_from(each).where(each.c.value == tag).exists()
    return cast(Run.tags, JSONB).contains([tag])
