"""`serve`, `db` and `token`, plugged into the command `roundoff`."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from .database_commands import Url, db as db, one_line
from .token_commands import token as token

if TYPE_CHECKING:
    from .database import Database


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
        bool, typer.Option("--insecure", help="Ask nobody for a token, also beyond this machine.")
    ] = False,
) -> None:
    """Run the server: it takes what trainings send, keeps it, shows it, and raises alerts.

    It migrates its database by itself. Ctrl-C stops it.
    """
    from .settings import load

    with one_line():  # what can be wrong is found before the slow imports
        settings = load(host=host, port=port, database_url=database, insecure=insecure or None)
        from .running import address, open_socket, run

        listener = open_socket(settings.host, settings.port)
    with listener:
        from .app import create_app
        from .closing import first_token, is_closed
        from .database import Database, upgrade
        from .logs import set_up

        with one_line():
            store = Database(settings.database_url)
            upgrade(store)
            first, closed = first_token(store, settings), is_closed(store, settings)
        set_up(settings.log_level, settings.log_format)
        threading.Thread(target=_sweep, args=(store,), daemon=True).start()
        app = create_app(store, token=settings.token, closed=closed, local_only=settings.loopback)
        where = address(settings.host, listener)

        def ready() -> None:
            typer.echo(f"roundoff is ready at {where} (database: {store.name}). Ctrl-C stops it.")
            if first is not None:
                typer.echo(f"First admin token, shown this once: {first}")
            sys.stdout.flush()
            if open_browser:
                _open(where)

        app.state.service.start_relay()
        run(app, listener, ready, settings.proxies)
        app.state.service.close()
        store.dispose()


def _sweep(store: Database) -> None:
    """Give back what a server that was killed had begun to delete."""
    from .services.removal import sweep

    sweep(store)


def _open(where: str) -> None:
    import webbrowser

    if not webbrowser.open(where):
        typer.echo(f"no browser could be opened here; open {where} yourself")
