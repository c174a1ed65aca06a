"""`serve` and `db`, plugged into the command `roundoff`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="SQLAlchemy URL or path of a SQLite file (ROUNDOFF_DATABASE_URL; else a file in your data folder).",
    ),
]


@contextmanager
def _one_line() -> Iterator[None]:
    """An error for the user is one line and exit code 1."""
    try:
        yield
    except (OSError, ValueError) as error:
        typer.secho(
            f"error: {' '.join(str(error).split())}", err=True, fg="red" if sys.stderr.isatty() else None
        )
        raise typer.Exit(1) from None


def serve(
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address to listen on (ROUNDOFF_HOST; else 127.0.0.1)."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help="Port to listen on, 0 for a free one (ROUNDOFF_PORT; else 8765)."
        ),
    ] = None,
    database: Url = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the pages in a browser.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without a token.")
    ] = False,
) -> None:
    """Run the server: it takes what trainings send, keeps it, shows it, and raises alerts.

    It migrates its database by itself. Ctrl-C stops it.
    """
    from .settings import load, require_safe

    with _one_line():  # what can be wrong is found before the slow imports
        settings = load(host=host, port=port, database_url=database, insecure=insecure or None)
        require_safe(settings)
        from .running import address, open_socket, run

        listener = open_socket(settings.host, settings.port)
    with listener:
        from .app import create_app
        from .database import Database, upgrade

        with _one_line():
            store = Database(settings.database_url)
            upgrade(store)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        app = create_app(store, token=settings.token, local_only=settings.loopback)
        where = address(settings.host, listener)

        def ready() -> None:
            typer.echo(f"roundoff is ready at {where} (database: {store.name}). Ctrl-C stops it.")
            sys.stdout.flush()
            if open_browser:
                _open(where)

        run(app, listener, ready)
        store.dispose()


def _open(where: str) -> None:
    import webbrowser

    if not webbrowser.open(where):
        typer.echo(f"no browser could be opened here; open {where} yourself")


db = typer.Typer(help="Look after the database.", no_args_is_help=True)


@db.command("upgrade")
def upgrade_database(database: Url = None) -> None:
    """Bring the database to the schema of this version. `serve` does it by itself."""
    from .database import Database, upgrade
    from .settings import load

    with _one_line():
        store = Database(load(database_url=database).database_url)
        before, after = upgrade(store)
        store.dispose()
    said = (
        f"has schema {after} already"
        if before == after
        else f"now has schema {after} (before: {before or 'none'})"
    )
    typer.echo(f"{store.name} {said}")


@db.command("check")
def check_database(database: Url = None) -> None:
    """Check that the database can be read, has the schema of this version, and is not damaged."""
    from .database import Database, require_current
    from .services.check import findings
    from .settings import load

    with _one_line():
        store = Database(load(database_url=database).database_url, read_only=True)
        require_current(store)
        found = findings(store)
        store.dispose()
    for finding in found:
        typer.secho(f"error: {finding}", err=True)
    if found:
        raise typer.Exit(1)
    typer.echo(f"{store.name}: nothing wrong")
