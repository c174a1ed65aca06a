"""`roundoff runs`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from roundoff.metrics import percent
from roundoff.wire import RunSummary

from .source import Database, Json, Server, Token, collect, open_source
from .terminal import age, health, number, output, print_json, table


def runs(
    project: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this project.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE", help="Only runs that are running, finished, crashed, preempted or stale."
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", "-q", metavar="TEXT", help="Text in project, name or id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 50,
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
    database: Database = None,
) -> None:
    """List runs with their state, verdict and figures, newest first."""
    with open_source(server, token, database) as source:

        def page(size: int, cursor: str | None) -> tuple[list[RunSummary], str | None]:
            got = source.runs(project=project, state=state, q=search, limit=size, cursor=cursor)
            return got.runs, got.next_cursor

        found = collect(limit, page)
    if as_json:
        print_json([*found])
    elif found:
        _print(found)
    else:
        output.print("No runs.", style="dim")


WIDE = 100
"""Terminal width from which the loss and the time since the last data are shown as well."""


def _print(found: list[RunSummary]) -> None:
    wide = output.width >= WIDE
    right = ["step", "lost", "efficiency", *(["loss", "seen"] if wide else []), "alerts"]
    shown = table("run", "state", "verdict", *right, right=tuple(right))
    for run in found:
        extra = [number(run.loss), age(run.last_seen)] if wide else []
        shown.add_row(
            Text(f"{run.project}/{run.name}"),
            run.state,
            health(run.health),
            "–" if run.step is None else f"{run.step:,}",
            "–" if run.lost_fraction is None else percent(run.lost_fraction),
            number(run.descent_efficiency, 2),
            *extra,
            str(run.alerts_firing or "–"),
        )
    output.print(shown)
