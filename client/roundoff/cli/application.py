"""The application: its own commands, those of other packages, and one line for every error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from roundoff._version import __version__

from . import alerts, check, delete, demo, doctor, export, importing, runs, scan, show, sync, version
from .terminal import errors

COMMANDS = "roundoff.commands"
"""Entry points that add commands: a function becomes a command, a `typer.Typer` a group of them."""

OWN: dict[str, Callable[..., None]] = {
    "version": version.version,
    "runs": runs.runs,
    "show": show.show,
    "alerts": alerts.alerts,
    "delete": delete.delete,
    "export": export.export,
    "import": importing.import_,
    "demo": demo.demo,
    "check": check.check,
    "scan": scan.scan,
    "sync": sync.sync,
    "doctor": doctor.doctor,
}

EXPLAINED = (LookupError, ValueError, ConnectionError, PermissionError, ImportError, OSError)
"""Errors whose text is for the user; anything else is a fault of ours and keeps its traceback."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exit code 0, 1 for a failure, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        application(words)(args=words, prog_name="roundoff")
    except EXPLAINED as error:
        errors.print(f"[bold red]error:[/] {' '.join(_text(error).split())}", soft_wrap=True, highlight=False)
        raise SystemExit(1) from None


def application(words: Sequence[str]) -> typer.Typer:
    """The application for these arguments; plug-ins are imported unless an own command is called."""
    app = typer.Typer(
        name="roundoff",
        help="Precision diagnostics for 16-bit training: which layers lose their updates, since when, "
        "and what cures it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, command in OWN.items():
        app.command(name)(command)
    if not words or words[0] not in OWN:
        for found in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
            _plug_in(app, found)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Options of the command itself."""


def _plug_in(app: typer.Typer, found: EntryPoint) -> None:
    try:
        command = found.load()
    except ModuleNotFoundError as error:
        _stand_in(app, found.name, error.name or "a package")
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=found.name)
    else:
        app.command(found.name)(command)


def _stand_in(app: typer.Typer, name: str, missing: str) -> None:
    """A command that cannot run here: it stays visible and says what it needs."""
    need = "pip install 'roundoff[server]'"

    @app.command(
        name,
        help=f"Not available here, needs: {need}".replace("[", r"\["),
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def explain() -> None:
        raise ImportError(f"`roundoff {name}` needs {missing}, which is not installed: {need}")


def _text(error: BaseException) -> str:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return str(text).replace("[", r"\[") or type(error).__name__
