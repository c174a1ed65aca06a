"""A run as one stream of bytes, with everything that is kept of it, and back into another database.

    "roundoff archive 1\\n", then zstd: parts of 1 byte kind, 4 bytes length (little-endian), payload

    H   JSON: the schema's revision, the run's own row
    T   JSON: a table and its columns, but for the run's key; its rows follow
    B   some of its rows, column by column: for each a mask of what is NULL, then the values
    E   JSON: rows by table; an archive without it is not whole

All that a table holds is carried, roll-ups and alerts too, so nothing is worked out anew, and both sides must have the
same schema. It is all read in one transaction, as of one moment, also where the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Double, LargeBinary, Table, insert, select, tuple_
from sqlalchemy.orm import Session

from ..database import Database, known_revision
from ..database.rows import put_rows
from ..models import (
    AlertRow,
    Attempt,
    Block,
    BlockMark,
    Declaration,
    GroupSample,
    HeadroomSample,
    LayerRow,
    LayerSample,
    ModelSample,
    Resolution,
    Run,
    ScalarName,
    ScalarValue,
    Scope,
    Strip,
    TakenBatch,
    Writer,
)
from .archive_parts import (
    NOT_WHOLE,
    ArchiveError,
    compressed,
    decompressed,
    frame,
    packed,
    unframed,
    unpacked,
)
from .runs import find_run

MEDIA_TYPE = "application/vnd.roundoff.archive"

ROWS = 10_000
"""Rows of numbers in one part."""

PAYLOADS = 200
"""Rows with a payload in one part."""

FAST = (LayerSample, ModelSample, ScalarValue, GroupSample, HeadroomSample)
"""Tables of numbers and of bytes of one length."""

TABLES: tuple[tuple[Any, int], ...] = (
    (Attempt, ROWS),
    (Writer, ROWS),
    (TakenBatch, ROWS),
    (LayerRow, ROWS),
    (Declaration, ROWS),
    (ScalarName, ROWS),
    (Resolution, ROWS),
    (BlockMark, ROWS),
    (Scope, ROWS),
    (AlertRow, ROWS),
    (LayerSample, ROWS),
    (ModelSample, ROWS),
    (ScalarValue, ROWS),
    (GroupSample, ROWS),
    (HeadroomSample, PAYLOADS),
    (Block, PAYLOADS),
    (Strip, PAYLOADS),
)
"""Everything that belongs to a run, what others refer to first, and how many rows are read at a time."""


class Restored(NamedTuple):
    """What was put in: the run's id and how many rows."""

    run_id: str
    rows: int


def read_archive(database: Database, run_id: str) -> Iterator[bytes]:
    """The archive of a run. Raises LookupError before anything is read."""
    with database.read() as session:
        find_run(session, run_id)
    return compressed(_parts(database, run_id))


def write_archive(database: Database, archive: Iterable[bytes]) -> Restored:
    """Put a run into a database, all of it or nothing.

    Raises `ArchiveError` for what is no archive, not whole, or of another schema, and for a run that is there already.
    """
    parts = unframed(decompressed(archive))
    kind, payload = next(parts, (b"", b""))
    if kind != b"H":
        raise ArchiveError("this is no archive of a run")
    header = json.loads(payload)
    if header["schema"] != known_revision():
        raise ArchiveError(
            f"the archive has schema {header['schema']}, this database {known_revision()}: upgrade the older of the "
            "two roundoffs, then export again"
        )
    with database.write() as session:
        run = _new_run(session, header["run"])
        counted = _fill(session, run, parts)
    return Restored(header["run"]["id"], sum(counted.values()))


def _new_run(session: Session, row: Mapping[str, Any]) -> int:
    if session.scalar(select(Run.run).where(Run.id == row["id"])) is not None:
        raise ArchiveError(
            f"run {row['id']!r} is there already, nothing was changed; delete it first to replace it"
        )
    run = Run(**row)
    session.add(run)
    session.flush()
    return run.run


def _fill(session: Session, run: int, parts: Iterator[tuple[bytes, bytes]]) -> dict[str, int]:
    known = {model.__tablename__: model for model, _ in TABLES}
    counted: dict[str, int] = {}
    model: Any = None
    columns: list[str] = []
    expected: dict[str, int] | None = None
    for kind, payload in parts:
        if expected is not None:
            raise ArchiveError("the archive is damaged: it goes on after its end; nothing was stored")
        if kind == b"T":
            told = json.loads(payload)
            model, columns = known.get(told["table"]), told["columns"]
            if model is None or set(columns) != set(_columns(model)):
                raise ArchiveError(
                    f"the archive has a table {told['table']!r} that this version does not know"
                )
            counted[model.__tablename__] = 0
        elif kind == b"B" and model is not None:
            counted[model.__tablename__] += _put(
                session, run, model, unpacked(_kinds(model, columns), payload)
            )
        elif kind == b"E":
            expected = json.loads(payload)
    if expected != counted:
        raise ArchiveError(NOT_WHOLE)
    return counted


def _put(session: Session, run: int, model: Any, columns: dict[str, list[Any]]) -> int:
    table: Table = model.__table__
    length = len(next(iter(columns.values())))
    if model in FAST:
        arrays = {name: _array(table.c[name].type, values) for name, values in columns.items()}
        put_rows(session.connection(), table, {"run": run, **arrays})
    else:
        names = list(columns)
        rows = [
            {"run": run, **dict(zip(names, values, strict=True))}
            for values in zip(*columns.values(), strict=True)
        ]
        session.execute(insert(table), rows)
    return length


def _array(kind: Any, values: list[Any]) -> Any:
    """For tables of numbers, where a NULL count is 0 and a NULL sum is NaN."""
    if isinstance(kind, Double):
        return np.array([np.nan if value is None else value for value in values], "f8")
    if isinstance(kind, LargeBinary):
        return values
    return np.array([0 if value is None else value for value in values], "i8")


def _columns(model: Any) -> list[str]:
    return [column.name for column in model.__table__.columns if column.name != "run"]


def _kinds(model: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: model.__table__.c[name].type for name in names}


def _row_of(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _columns(Run)}


def _parts(database: Database, run_id: str) -> Iterator[bytes]:
    with database.read() as session:
        if not database.is_sqlite:  # there a transaction sees one moment anyway
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        run = find_run(session, run_id)
        yield frame(b"H", json.dumps({"schema": known_revision(), "run": _row_of(run)}).encode())
        counted: dict[str, int] = {}
        for model, at_once in TABLES:
            names = _columns(model)
            yield frame(b"T", json.dumps({"table": model.__tablename__, "columns": names}).encode())
            counted[model.__tablename__] = 0
            for rows in _rows(session, run.run, model, at_once):
                counted[model.__tablename__] += len(rows)
                yield frame(b"B", packed(_kinds(model, names), rows))
        yield frame(b"E", json.dumps(counted).encode())


def _rows(session: Session, run: int, model: Any, at_once: int) -> Iterator[Sequence[Any]]:
    """The rows of a table in key order, without the run's key."""
    table: Table = model.__table__
    key = [column for column in table.primary_key if column.name != "run"]
    query = select(*(table.c[name] for name in _columns(model))).where(table.c.run == run)
    if not key:
        if rows := session.execute(query).all():
            yield rows
        return
    last: tuple[Any, ...] | None = None
    while True:
        following = query if last is None else query.where(tuple_(*key) > last)
        rows = session.execute(following.order_by(*key).limit(at_once)).all()
        if rows:
            yield rows
        if len(rows) < at_once:
            return
        last = tuple(getattr(rows[-1], column.name) for column in key)
