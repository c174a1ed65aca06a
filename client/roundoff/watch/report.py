"""The verdict table in the terminal: one look tells whether precision hurts, and where."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roundoff.metrics import Advice, descent_efficiency, lost_fraction, percent
from roundoff.metrics.counsel import HEADER, paragraphs, rows

from .history import History

SHOWN_LAYERS = 12
"""Layers in the table; the rest is counted."""

_STYLE = {"stalling": "bold red", "broken": "bold magenta", "healthy": "green", "idle": "dim"}


def print_report(history: History, console: Console | None = None) -> None:
    """Print the verdict, the model's figures and the worst layers."""
    console = console or Console(stderr=True)
    verdict = history.verdict()
    word = (verdict.state or "waiting").capitalize()
    headline = Text.assemble((f"{word}. ", _STYLE.get(verdict.state or "", "bold")), verdict.headline)
    console.print()
    console.print(headline)
    console.print(Text(verdict.explanation))
    if not history.samples:
        return
    console.print(_table(history))
    hidden = len(history.names) - SHOWN_LAYERS
    if hidden > 0:
        console.print(Text(f"and {hidden} more layers, none of them worse", style="dim"))
    if verdict.state == "stalling" and (advice := history.advice()) is not None:
        print_advice(advice, console)


def print_advice(advice: Advice, console: Console | None = None) -> None:
    """Print what every strategy would have lost of the same updates, and what follows."""
    console = console or Console(stderr=True)
    table = Table(title="the same updates, stored otherwise", title_justify="left", box=None, pad_edge=False)
    for column in HEADER:
        table.add_column(column, justify="right" if column not in (HEADER[0], HEADER[-1]) else "left")
    for row, option in zip(rows(advice), advice.options, strict=True):
        style = "bold green" if option.strategy == advice.recommended else "" if option.holds else "dim"
        table.add_row(*(Text(cell, style=style) for cell in row))
    console.print()
    console.print(table)
    for paragraph in paragraphs(advice):
        console.print(Text(paragraph))


def _table(history: History) -> Table:
    title = f"{history.samples} samples, last at step {history.last_step:,}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    table.add_column("verdict")
    table.add_column("updates lost", justify="right")
    table.add_column("descent efficiency", justify="right")
    window = history.window
    table.add_row(
        Text("whole model", style="bold"),
        "",
        percent(lost_fraction(window)),
        _ratio(descent_efficiency(window)),
    )
    for line in history.lines()[:SHOWN_LAYERS]:
        state = line.state or "waiting"
        table.add_row(
            Text(line.name),
            Text(state, style=_STYLE.get(state, "")),
            percent(line.lost_fraction),
            _ratio(line.descent_efficiency),
        )
    return table


def _ratio(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
