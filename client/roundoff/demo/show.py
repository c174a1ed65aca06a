"""The demo from end to end: server, browser, one run per strategy, verdict."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import roundoff
from roundoff.cli.terminal import health, table
from roundoff.metrics import percent
from roundoff.optim import STRATEGIES
from roundoff.wire import RunSummary

from .serving import serving
from .text import Text as TrainingText, load_text
from .train import NAMES, Recipe, train

PROJECT = "demo"

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to: its validation loss here, and how the server sees it."""

    strategy: str
    validation_loss: float
    summary: RunSummary


def show_demo(
    *,
    steps: int,
    strategies: Sequence[str],
    seed: int,
    port: int | None,
    leave: bool,
    open_browser: bool,
    database: str | None,
) -> None:
    """Run the demo; see `roundoff demo --help`. Raises ValueError for a strategy that does not exist."""
    for name in strategies:
        if name not in STRATEGIES:
            raise ValueError(f"unknown strategy {name!r}: choose from {', '.join(STRATEGIES)}")
    if not strategies:
        raise ValueError(f"no strategy given: choose from {', '.join(STRATEGIES)}")
    logging.getLogger("roundoff").setLevel(logging.WARNING)  # the terminal belongs to the progress bars
    database = database or os.environ.get("ROUNDOFF_DATABASE_URL")
    with _orderly_end(), serving(port, database) as (address, process):
        how = "started" if process else "running already"
        console.print(f"roundoff is at [bold]{address}[/] ({how}).")
        if open_browser and _has_screen():
            webbrowser.open(address)
        recipe = Recipe(steps, seed)
        outcomes = _train_all(strategies, recipe, address)
        _print_verdict(outcomes)
        if process is not None and not leave:
            console.print(f"\nThe pages stay up at [bold]{address}[/]. Press Ctrl-C to end.")
            _wait(process)


def _wait(process: subprocess.Popen[str]) -> None:
    """Until Ctrl-C, or until the server ends."""
    try:
        process.wait()
        console.print("The server has ended.")
    except KeyboardInterrupt:
        console.print("\nEnded.")


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Let a request to terminate stop the server too."""

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _train_all(strategies: Sequence[str], recipe: Recipe, address: str) -> list[Outcome]:
    text = load_text()
    outcomes = []
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress, roundoff.Client(address) as client:
        for strategy in strategies:
            outcomes.append(_train_one(strategy, recipe, text, address, progress, client))
    return outcomes


def _train_one(
    strategy: str,
    recipe: Recipe,
    text: TrainingText,
    address: str,
    progress: Progress,
    client: roundoff.Client,
) -> Outcome:
    name = NAMES.get(strategy, strategy)
    task = progress.add_task(name, total=recipe.steps, loss="…")
    config = {"strategy": strategy, "steps": recipe.steps, "seed": recipe.seed, "dtype": "bfloat16"}
    with roundoff.init(PROJECT, name, config, server=address, tags=["demo"]) as run:
        loss = train(
            strategy,
            recipe,
            text,
            run,
            lambda step, value: progress.update(task, completed=step + 1, loss=f"{value:.3f}"),
        )
    return Outcome(strategy, loss, client.run(run.id))


def _print_verdict(outcomes: Sequence[Outcome]) -> None:
    console.print()
    for outcome in outcomes:
        summary = outcome.summary
        line = Text(f"{summary.name}: ", style="bold")
        line.append_text(Text(f"{summary.headline} {summary.explanation}", style="not bold"))
        console.print(line)
    console.print()
    right = ("validation loss", "lost", "efficiency", "stalling")
    shown = table("run", *right, "verdict", right=right)
    shown.columns[0].no_wrap = shown.columns[-1].no_wrap = True
    for outcome in outcomes:
        summary = outcome.summary
        efficiency = summary.descent_efficiency
        shown.add_row(
            summary.name,
            f"{outcome.validation_loss:.3f}",
            percent(summary.lost_fraction),
            "n/a" if efficiency is None else f"{efficiency:.2f}",
            f"{summary.layers_stalling} of {summary.layers}",
            health(summary.health),
        )
    console.print(shown)
    if closing := _closing(outcomes):
        console.print(f"\n{closing}")


def _closing(outcomes: Sequence[Outcome]) -> str:
    """The one sentence to remember: what plain storage lost, and what compensation kept at the same width."""
    by_strategy = {outcome.strategy: outcome for outcome in outcomes}
    plain, cured = by_strategy.get("none"), by_strategy.get("plus") or by_strategy.get("light")
    if plain is None or cured is None:
        return ""
    return (
        f"At the end plain bfloat16 stored {percent(plain.summary.descent_efficiency)} of its intended descent "
        f"and came to a validation loss of {plain.validation_loss:.3f}; {cured.summary.name}, the same model "
        f"and seed in 16 bit, stored {percent(cured.summary.descent_efficiency)} and came to "
        f"{cured.validation_loss:.3f}."
    )


def _has_screen() -> bool:
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
