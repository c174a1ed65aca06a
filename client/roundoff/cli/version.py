"""`roundoff version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version as installed

import typer

from roundoff._version import __version__

from .source import Json
from .terminal import print_json

SHOWN = ("torch", "httpx", "pydantic", "fastapi", "sqlalchemy", "plotly")


def version(as_json: Json = False) -> None:
    """Print the version, with --json also those of Python and the packages that matter in a bug report."""
    if not as_json:
        typer.echo(__version__)
        return
    packages: dict[str, str | None] = {}
    for name in SHOWN:
        try:
            packages[name] = installed(name)
        except PackageNotFoundError:
            packages[name] = None
    print_json(
        {
            "roundoff": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": packages,
        }
    )
