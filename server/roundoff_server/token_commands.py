"""`roundoff token`: who may ask the servers on a database."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .database_commands import Url, one_line, opened

if TYPE_CHECKING:
    from roundoff.wire import TokenScope

    from .models import TokenRow

token = typer.Typer(help="Make, list and revoke access tokens of a database.", no_args_is_help=True)


class Scope(StrEnum):
    """What a token may do, as a choice of the command line."""

    INGEST = "ingest"
    READ = "read"
    ADMIN = "admin"


Scopes = Annotated[
    list[Scope] | None,
    typer.Option(
        "--scope",
        help="What it may do: ingest (a training), read (pages, queries) or admin (everything). May be repeated; "
        "ingest and read if not given.",
    ),
]


@token.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for: a person, a cluster, a job.")],
    scope: Scopes = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="It opens for N days; else without end.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    database: Url = None,
) -> None:
    """Make a token and print it, this once: only its hash is kept."""
    from .services import tokens

    if not 0 < len(name) <= 100:
        raise typer.BadParameter("a name has 1 to 100 characters", param_hint="NAME")
    asked: list[TokenScope] = [one.value for one in scope or (Scope.INGEST, Scope.READ)]
    with opened(database) as store, one_line(), store.write() as session:
        row, text = tokens.create(session, name, asked, time.time(), days)
    if as_json:
        typer.echo(json.dumps(_document(row) | {"text": text}))
    else:
        typer.echo(text)


@token.command("list")
def list_tokens(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    database: Url = None,
) -> None:
    """List tokens: name, scopes, when they were made and last used, and which open no more."""
    from .services import tokens

    with opened(database, read_only=True) as store, store.read() as session:
        found = [_document(row) for row in tokens.listed(session)]
    if as_json:
        typer.echo(json.dumps(found))
        return
    for one in found:
        typer.echo("  ".join((f"{one['id']:>4}", f"{one['name']:<24}", f"{one['scopes']:<18}", _state(one))))
    if not found:
        typer.echo("No tokens. `roundoff token create NAME` makes one.")


@token.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name, or its number in the list.")],
    database: Url = None,
) -> None:
    """Revoke a token: within seconds it opens nothing any more, nor do browsers that signed in with it."""
    from .services import tokens

    now = time.time()
    with opened(database) as store, one_line(), store.write() as session:
        row = tokens.revoke(session, tokens.numbered(session, name, now), now)
        said = row.name
    typer.echo(f"{said} is revoked")


def _document(row: TokenRow) -> dict[str, object]:
    times = {
        "created": row.created_at,
        "expires": row.expires_at,
        "used": row.used_at,
        "revoked": row.revoked_at,
    }
    shown = {
        name: None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
        for name, at in times.items()
    }
    return {"id": row.token, "name": row.name, "scopes": row.scopes, **shown}


def _state(one: dict[str, object]) -> str:
    if one["revoked"]:
        return f"revoked {one['revoked']}"
    used = f"used {one['used']}" if one["used"] else "never used"
    return f"{used}, opens until {one['expires']}" if one["expires"] else used
