"""`roundoff delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from roundoff.query import Client

from .source import Server, Token
from .terminal import output


def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as in the address of its page.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Delete a run with all that it has, on a server. There is no way back."""
    with Client(server, token) as client:
        found = client.run(run)
        if not yes:
            typer.confirm(f"Delete {found.project}/{found.name} with all that was measured?", abort=True)
        client.delete(run)
    output.print(f"{found.project}/{found.name} is deleted.", markup=False)
