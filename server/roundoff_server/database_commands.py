"""`roundoff db`: look after the database."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .database import Database

Url = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="SQLAlchemy URL or path of a SQLite file (ROUNDOFF_DATABASE_URL; else a file in your data folder).",
    ),
]


@contextmanager
def one_line() -> Iterator[None]:
    """An error for the user is one line and exit code 1."""
    try:
        yield
    except (OSError, ValueError, LookupError) as error:
        typer.secho(
            f"error: {' '.join(str(error).split())}", err=True, fg="red" if sys.stderr.isatty() else None
        )
        raise typer.Exit(1) from None


@contextmanager
def opened(url: str | None, *, read_only: bool = False) -> Iterator[Database]:
    """The database that is meant, current; an error is one line."""
    from .database import Database, require_current
    from .settings import load

    with one_line():
        store = Database(load(database_url=url).database_url, read_only=read_only)
        try:
            require_current(store)
            yield store
        finally:
            store.dispose()


db = typer.Typer(help="Look after the database.", no_args_is_help=True)


@db.command("upgrade")
def upgrade_database(database: Url = None) -> None:
    """Bring the database to the schema of this version. `serve` does it by itself."""
    from .database import Database, upgrade
    from .settings import load

    with one_line():
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
    from .services.check import findings

    with opened(database, read_only=True) as store:
        found = findings(store)
    for finding in found:
        typer.secho(f"error: {finding}", err=True)
    if found:
        raise typer.Exit(1)
    typer.echo(f"{store.name}: nothing wrong")


@db.command("vacuum")
def vacuum_database(database: Url = None) -> None:
    """Give the space of deleted rows back. A SQLite file is written anew: that takes as much space once more."""
    from .services.removal import sweep

    with opened(database) as store:
        sweep(store)
        before = store.size()
        store.maintain("VACUUM")
        if store.is_sqlite:
            store.maintain("PRAGMA wal_checkpoint(TRUNCATE)")
        after = store.size()
    typer.echo(f"{store.name}: {after / 1e6:,.1f} MB (before: {before / 1e6:,.1f} MB)")


@db.command("thin")
def thin_database(
    days: Annotated[float, typer.Option(min=0, metavar="N", help="Runs that sent nothing for N days.")],
    database: Url = None,
) -> None:
    """Keep only the roll-ups of old runs: their charts stay, single steps of layers go."""
    from .services.retention import thin_old

    with opened(database) as store:
        thinned = thin_old(store, days, time.time())
    for run_id in thinned:
        typer.echo(f"thinned {run_id}")
    typer.echo(f"{len(thinned)} runs thinned; `roundoff db vacuum` gives their space back")


@db.command("backup")
def back_up_database(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; must not be there yet.")],
    database: Url = None,
) -> None:
    """Copy a SQLite database while it is in use. For PostgreSQL there is pg_dump."""
    with opened(database) as store:
        store.copy_to(target)
    typer.echo(f"{store.name} is copied to {target}")


@db.command("archive")
def archive_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The archive; must not be there yet.")],
    database: Url = None,
) -> None:
    """Write everything that is kept of a run into a file, for `roundoff db restore` or `roundoff import`."""
    from .services.archive import read_archive

    with opened(database, read_only=True) as store:
        if target.exists():
            raise FileExistsError(f"{target} is there already; name a file that is not")
        parts = read_archive(store, run)
        unfinished = target.with_name(f"{target.name}.part")
        with unfinished.open("wb") as file:
            size = sum(file.write(part) for part in parts)
        unfinished.replace(target)
    typer.echo(f"{target}: {size / 1e6:,.1f} MB")


@db.command("restore")
def restore_run(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="An archive of a run.")],
    database: Url = None,
) -> None:
    """Put a run from an archive into the database, all of it or nothing."""
    from .services.archive import write_archive

    with opened(database) as store, source.open("rb") as file:
        done = write_archive(store, iter(lambda: file.read(2**16), b""))
    typer.echo(f"{done.run_id}: {done.rows:,} rows")
