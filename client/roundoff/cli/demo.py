"""`roundoff demo`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

STRATEGIES = "none,plus,fp32-master"
"""The baseline that loses, its cure, and the reference; `light` can be asked for."""


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each run.")] = 400,
    strategies: Annotated[
        str, typer.Option(metavar="LIST", help="Strategies of CollageAdamW to train with, one run each.")
    ] = STRATEGIES,
    seed: Annotated[
        int, typer.Option(help="Seed of the model and of the batches, the same for every run.")
    ] = 0,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="PORT", help="Port of the server; the next free one if taken."
        ),
    ] = None,
    leave: Annotated[
        bool, typer.Option("--exit", help="End after the last run, and stop the server that was started.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the pages in a browser, where there is a screen.")
    ] = True,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="Database of the server that is started.")
    ] = None,
) -> None:
    """Train a small GPT in bfloat16 several ways, and watch live which of them loses its updates.

    Starts a server on this machine unless one runs already, trains one run per strategy on the text of
    CPython's own documentation, and ends with the verdict. The server stays up until Ctrl-C, unless --exit.
    """
    # Threads that spin while they wait would take the server's share of the machine: measured, a step is
    # twice as quick without on two busy cores. OpenMP reads it once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from roundoff.demo.show import show_demo

    chosen = [name.strip() for name in strategies.split(",") if name.strip()]
    show_demo(
        steps=steps,
        strategies=chosen,
        seed=seed,
        port=port,
        leave=leave,
        open_browser=show,
        database=database,
    )
