"""Write many rows fast: columns in, no Python object per row on PostgreSQL, one tuple per row on SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, Double, Integer, LargeBinary, Table

Columns = Mapping[str, Any]
"""Column name → a numpy array, a list of bytes, or one number for every row."""

_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_COPY_END = b"\xff\xff"


def last_of_each(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Row numbers in key order, only the last of rows with equal keys."""
    stacked = np.stack([np.asarray(key, "i8") for key in keys], axis=1)[::-1]
    _, newest = np.unique(stacked, axis=0, return_index=True)
    return np.asarray(len(stacked) - 1 - newest, dtype=np.int64)


def put_rows(connection: Connection, table: Table, columns: Columns) -> int:
    """Insert rows, replacing those whose primary key is there already; returns how many rows there were.

    Of rows with equal keys in `columns` the last wins.
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
    if connection.dialect.name == "sqlite":
        rows = list(zip(*(_plain(ordered[column.name]) for column in table.columns), strict=True))
        marks = ", ".join("?" * len(table.columns))
        connection.exec_driver_sql(f"{_insert(table)} VALUES ({marks}) {_on_conflict(table)}", rows)
    else:
        _put_postgresql(connection, table, ordered)
    return len(order)


def _plain(column: Any) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _names(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)


def _insert(table: Table) -> str:
    return f'INSERT INTO "{table.name}" ({_names(table)})'


def _on_conflict(table: Table) -> str:
    key = ", ".join(f'"{column.name}"' for column in table.primary_key)
    rest = (column.name for column in table.columns if not column.primary_key)
    sets = ", ".join(f'"{name}" = excluded."{name}"' for name in rest)
    return f"ON CONFLICT ({key}) DO UPDATE SET {sets}"


def _put_postgresql(connection: Connection, table: Table, columns: Columns) -> None:
    """COPY straight into the table; only if a key is there already, through a temporary one."""
    try:
        with connection.begin_nested():
            _copy(connection, f'"{table.name}"', table, columns)
    except psycopg.errors.UniqueViolation:
        name = f"again_{table.name}"
        connection.exec_driver_sql(f'CREATE TEMP TABLE {name} (LIKE "{table.name}") ON COMMIT DROP')
        _copy(connection, name, table, columns)
        connection.exec_driver_sql(
            f"{_insert(table)} SELECT {_names(table)} FROM {name} {_on_conflict(table)}"
        )
        connection.exec_driver_sql(f"DROP TABLE {name}")


def _copy(connection: Connection, target: str, table: Table, columns: Columns) -> None:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {target} ({_names(table)}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(_COPY_HEADER)
        copy.write(_copy_rows(table, columns))
        copy.write(_COPY_END)


def _copy_rows(table: Table, columns: Columns) -> bytes:
    """The rows in PostgreSQL's binary COPY format: every field as its length and its big-endian bytes."""
    fields: list[tuple[str, str]] = [("width", ">i2")]
    for column in table.columns:
        fields += [
            (f"length of {column.name}", ">i4"),
            (column.name, _copy_type(column.type, columns[column.name])),
        ]
    rows = np.zeros(len(columns[next(iter(columns))]), dtype=fields)
    rows["width"] = len(table.columns)
    for column in table.columns:
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
