"""Where a reading command reads: a server, or a database when none runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import httpx
import typer

from roundoff.query import Client
from roundoff.settings import DEFAULT_SERVER, load

PROBE_S = 1.0

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help=f"Server to ask (ROUNDOFF_SERVER; else {DEFAULT_SERVER})."),
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TEXT", help="Access token for the server (ROUNDOFF_TOKEN)."),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="URL", help="Database to read when no server runs: SQLAlchemy URL or path."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


_Item = TypeVar("_Item")

PAGE = 100
"""Rows asked for at a time."""


def collect(limit: int, page: Callable[[int, str | None], tuple[list[_Item], str | None]]) -> list[_Item]:
    """At most `limit` items of a list that the server answers in pages: `page(size, cursor)` gives the next."""
    found: list[_Item] = []
    cursor = None
    while len(found) < limit:
        items, cursor = page(min(limit - len(found), PAGE), cursor)
        found += items
        if cursor is None:
            break
    return found[:limit]


def open_source(server: str | None, token: str | None, database: str | None) -> Client:
    """What was named; else the default server if it answers; else the default database, read-only."""
    if server and database:
        raise typer.BadParameter("give either --server or --database, not both")
    if database is not None:
        return Client(database=database)
    settings = load(server=server, token=token)
    if settings.server is not None or answers(DEFAULT_SERVER):
        return Client(server, token)
    try:
        return Client(database="")
    except ImportError as error:
        raise ConnectionError(f"no roundoff server answers at {DEFAULT_SERVER}, and {error}") from None


def answers(server: str) -> bool:
    """Whether a roundoff server answers at this address within a second."""
    try:
        response = httpx.get(f"{server}/healthz", timeout=PROBE_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return response.is_success and "roundoff" in response.text
