"""`roundoff export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .source import Server, Token, open_source
from .terminal import errors


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as in the address of its page.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="csv, ndjson, parquet, or archive: all tables, for `roundoff import`.",
        ),
    ] = "csv",
    table: Annotated[
        str, typer.Option(metavar="TABLE", help="samples, model, scalars, groups or headroom.")
    ] = "samples",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; else to standard output.")
    ] = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """Write all rows of a run as a file, however many there are."""
    with open_source(server, token, None) as source:
        parts = source.archive(run) if form == "archive" else source.export(run, form, table=table)
        if output is None:
            for part in parts:
                sys.stdout.buffer.write(part)
            return
        unfinished = output.with_name(f"{output.name}.part")
        with unfinished.open("wb") as file:
            size = sum(file.write(part) for part in parts)
        unfinished.replace(output)
    errors.print(f"{output}: {size / 1e6:,.1f} MB", highlight=False, markup=False)
