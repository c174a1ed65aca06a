"""`roundoff import`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from roundoff.query import Client

from .source import Json, Server, Token
from .terminal import output, print_json

PIECE = 2**16


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Of `roundoff export RUN --format archive`; - is standard input."
        ),
    ],
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Put a run from an archive onto a server, all of it or nothing. For a database, see `roundoff db restore`."""
    with Client(server, token) as client:
        if str(file) == "-":
            done = client.restore(_pieces(sys.stdin.buffer))
        else:
            with file.open("rb") as source:
                done = client.restore(_pieces(source))
    if as_json:
        print_json(done)
    else:
        output.print(f"{done.run_id}: {done.rows:,} rows", markup=False, highlight=False)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
