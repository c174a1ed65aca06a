"""Write many rows fast: columns in, no Python object per row on PostgreSQL, one tuple per row on SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Column, Connection, Double, Integer, LargeBinary, Table

Columns = Mapping[str, Any]
"""Column name → a numpy array, a list of bytes, or one number for every row."""

_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_COPY_END = b"\xff\xff"


def last_of_each(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Row numbers in key order, only the last of rows with equal keys."""
    columns = [np.asarray(key, "i8") for key in keys]
    # Most keys are the same in every row: they decide nothing.
    sorted_by = [column for column in columns if len(column) and (column != column[0]).any()] or columns[:1]
    order = np.lexsort(sorted_by[::-1])
    last = np.ones(len(order), dtype=bool)
    last[:-1] = np.logical_or.reduce([np.diff(column[order]) != 0 for column in sorted_by])
    return np.asarray(order[last], dtype=np.int64)


def put_rows(connection: Connection, table: Table, columns: Columns) -> int:
    """Insert rows, replacing those whose primary key is there already; returns how many rows there were.

    Of rows with equal keys in `columns` the last wins. Counts that are 0 in every row are left out: they are NULL.
    """
    length = next((len(column) for column in columns.values() if not isinstance(column, int)), 1)
    if length == 0:
        return 0
    arrays = {name: np.full(length, c) if isinstance(c, int) else c for name, c in columns.items()}
    order = last_of_each([arrays[column.name] for column in table.primary_key])
    ordered = {
        name: column[order] if isinstance(column, np.ndarray) else [column[i] for i in order]
        for name, column in arrays.items()
    }
    filled = [column for column in table.columns if not _left_out(column, ordered[column.name])]
    if connection.dialect.name == "sqlite":
        rows = list(zip(*(_plain(ordered[column.name]) for column in filled), strict=True))
        marks = ", ".join("?" * len(filled))
        connection.exec_driver_sql(f"{_insert(table, filled)} VALUES ({marks}) {_on_conflict(table)}", rows)
    else:
        _put_postgresql(connection, table, filled, ordered)
    return len(order)


def _left_out(column: Column[Any], values: Any) -> bool:
    return bool(column.nullable) and isinstance(column.type, Integer) and not values.any()


def _plain(column: Any) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _names(columns: Sequence[Column[Any]]) -> str:
    return ", ".join(f'"{column.name}"' for column in columns)


def _insert(table: Table, columns: Sequence[Column[Any]]) -> str:
    return f'INSERT INTO "{table.name}" ({_names(columns)})'


def _on_conflict(table: Table) -> str:
    key = ", ".join(f'"{column.name}"' for column in table.primary_key)
    rest = (column.name for column in table.columns if not column.primary_key)
    sets = ", ".join(f'"{name}" = excluded."{name}"' for name in rest)
    return f"ON CONFLICT ({key}) DO UPDATE SET {sets}"


def _put_postgresql(
    connection: Connection, table: Table, filled: Sequence[Column[Any]], columns: Columns
) -> None:
    """COPY straight into the table; only if a key is there already, through a temporary one."""
    try:
        with connection.begin_nested():
            _copy(connection, f'"{table.name}"', filled, columns)
    except psycopg.errors.UniqueViolation:
        name = f"again_{table.name}"
        connection.exec_driver_sql(f'CREATE TEMP TABLE {name} (LIKE "{table.name}") ON COMMIT DROP')
        _copy(connection, name, filled, columns)
        connection.exec_driver_sql(
            f"{_insert(table, filled)} SELECT {_names(filled)} FROM {name} {_on_conflict(table)}"
        )
        connection.exec_driver_sql(f"DROP TABLE {name}")


def _copy(connection: Connection, target: str, filled: Sequence[Column[Any]], columns: Columns) -> None:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {target} ({_names(filled)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(_COPY_HEADER)
        copy.write(_copy_rows(filled, columns))
        copy.write(_COPY_END)


def _copy_rows(filled: Sequence[Column[Any]], columns: Columns) -> bytes:
    """The rows in PostgreSQL's binary COPY format: every field as its length and its big-endian bytes."""
    fields: list[tuple[str, str]] = [("width", ">i2")]
    for column in filled:
        fields += [
            (f"length of {column.name}", ">i4"),
            (column.name, _copy_type(column.type, columns[column.name])),
        ]
    rows = np.zeros(len(columns[next(iter(columns))]), dtype=fields)
    rows["width"] = len(filled)
    for column in filled:
        rows[f"length of {column.name}"] = rows.dtype[column.name].itemsize
        rows[column.name] = columns[column.name]
    return rows.tobytes()


def _copy_type(kind: object, column: Any) -> str:
    if isinstance(kind, BigInteger):
        return ">i8"
    if isinstance(kind, Integer):
        return ">i4"
    if isinstance(kind, Double):
        return ">f8"
    if isinstance(kind, LargeBinary):
        return f"V{len(column[0])}"
    raise TypeError(f"no binary form of {kind!r} is known")
