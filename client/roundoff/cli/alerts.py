"""`roundoff alerts`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from roundoff.wire import Alert

from .source import Database, Json, Server, Token, collect, open_source
from .terminal import age, output, print_json

INDENT = 10
STATE_STYLE = {"firing": "bold red", "pending": "yellow", "resolved": "dim"}


def alerts(
    project: Annotated[str | None, typer.Option(metavar="NAME", help="Only alerts of this project.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only alerts of this run.")] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only alerts that are pending, firing or resolved.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 50,
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
    database: Database = None,
) -> None:
    """List alerts: which run, since which step, which layers, and the cure; newest first."""
    with open_source(server, token, database) as source:

        def page(size: int, cursor: str | None) -> tuple[list[Alert], str | None]:
            got = source.alerts(run_id=run, project=project, state=state, limit=size, cursor=cursor)
            return got.alerts, got.next_cursor

        found = collect(limit, page)
    if as_json:
        print_json([*found])
    elif found:
        print_alerts(found)
    else:
        output.print("No alerts.", style="dim")


def print_alerts(found: list[Alert]) -> None:
    """Alerts one by one, as text."""
    for alert in found:
        line = Text.assemble(
            (f"{alert.state:<9} ", STATE_STYLE.get(alert.state, "")),
            (f"{alert.project}/{alert.run_name}", "bold"),
            f"  {alert.rule}, since step {alert.since_step:,}",
        )
        if alert.fired_at is not None:
            line.append(f", fired {age(alert.fired_at)} ago")
        if alert.state == "resolved" and alert.reason:
            line.append(f", resolved: {alert.reason}")
        output.print(line)
        output.print(Padding(Text(alert.headline), (0, 0, 0, INDENT)))
        if alert.cure:
            output.print(Padding(Text(f"Cure: {alert.cure}", style="dim"), (0, 0, 0, INDENT)))
