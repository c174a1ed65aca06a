"""`roundoff sync`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roundoff.delivery import Notices
from roundoff.delivery.spool import writers
from roundoff.delivery.sync import Left, send_left
from roundoff.settings import load

from .source import Json, Server, Token
from .terminal import print_json

PATIENCE_S = 30.0


def sync(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Spool, or a folder in it (ROUNDOFF_SPOOL; else the user's)."),
    ] = None,
    server: Server = None,
    token: Token = None,
    timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Give up a server that does not answer for so long."),
    ] = PATIENCE_S,
    as_json: Json = False,
) -> None:
    """Send what runs have left in the spool, because they were offline, killed, or out of time.

    Goes to the server that is set, else to that of the run. Doing it again changes nothing; what a running program
    still writes is left to it. Exit code 1 if anything had to stay.
    """
    settings = load(server=server, token=token, spool=folder)
    root = settings.spool_folder
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    notices = Notices()
    found: list[Left] = []
    for writer in writers(root):
        left = send_left(writer, settings.server, settings.token, timeout, notices)
        found.append(left)
        if not as_json:
            typer.echo(_line(left))
        if left.state == "waiting":
            timeout = 0.0  # the server was waited for once
    if as_json:
        print_json({"spool": str(root), "writers": [_document(left) for left in found]})
    elif not found:
        typer.echo(f"nothing is left in {root}")
    if any(left.state in ("waiting", "unreadable") for left in found):
        raise typer.Exit(1)


def _line(left: Left) -> str:
    shown = f"{left.name or left.folder} ({left.run_id})"
    if left.state == "sent":
        text = f"{shown}: {left.sent:,} points sent to {left.server}"
    elif left.state == "waiting":
        text = f"{shown}: {left.sent:,} points sent, the rest waits: {left.problem}"
    else:
        text = f"{shown}: {left.state}, {left.problem}"
    dropped = "".join(f"; {number:,} {reason}" for reason, number in left.dropped.items())
    return f"{text}{dropped}{f'; what was refused is in {left.kept}' if left.kept else ''}"


def _document(left: Left) -> dict[str, object]:
    return {
        "folder": str(left.folder),
        "run": left.run_id,
        "name": left.name,
        "state": left.state,
        "sent": left.sent,
        "dropped": left.dropped,
        "problem": left.problem,
        "refused": None if left.kept is None else str(left.kept),
    }
