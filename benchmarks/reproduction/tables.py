"""The tables of the study in Markdown, and as cells for the page."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.optim import STRATEGIES

from .figures import MODES
from .recipe import REFERENCE
from .summary import Row, Study

HEAD = ("strategy", "seeds", "loss", "spread", "against the master", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """One row as text, in the order of `HEAD`.

    Loss: mean over the seeds; spread: their standard deviation; then the mean of the differences from the float32
    master seed by seed, with the smallest and the largest.
    """
    paper = STRATEGIES[row.strategy].paper
    name = f"{row.strategy} ({paper})" if paper else row.strategy
    spread = "" if row.spread is None else f"{row.spread:.4f}"
    return (name, str(len(row.losses)), f"{row.mean:.4f}", spread, _against(row), _verdict(row))


def _against(row: Row) -> str:
    if row.strategy == REFERENCE or not row.differences:
        return ""
    low, high = min(row.differences), max(row.differences)
    mean = sum(row.differences) / len(row.differences)
    return f"{mean:+.4f} ({low:+.4f} … {high:+.4f})".replace("-", "−")


def _verdict(row: Row) -> str:
    if row.strategy == REFERENCE or row.within is None:
        return ""
    return "within" if row.within else "better" if row.mean < min(row.reference.values()) else "outside"


def tables(study: Study, mode: str) -> Iterator[tuple[float, list[tuple[str, ...]]]]:
    """For each β2 the rows of one arithmetic mode, in the order of the table of strategies."""
    for beta2 in study.betas2:
        rows = (study.row(name, mode, beta2) for name in STRATEGIES)
        yield beta2, [cells(row) for row in rows if row is not None]


def markdown(study: Study) -> str:
    """Both tables, one per arithmetic mode, with a block of rows per β2."""
    lines = [progress(study)]
    for mode, label in MODES.items():
        lines += ["", f"{label[0].upper()}{label[1:]}:", ""]
        lines += [f"| β2 | {' | '.join(HEAD)} |", "|---|---|---:|---:|---:|---:|---|"]
        for beta2, rows in tables(study, mode):
            lines += [f"| {beta2} | {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def progress(study: Study) -> str:
    """How much of the study there is, in a sentence."""
    seeds = len({seed for row in study.rows for seed in row.losses})
    done = "All" if study.finished == study.wanted else f"{study.finished} of"
    return (
        f"{done} {study.wanted} runs, {seeds} seed{'s' if seeds > 1 else ''}, {study.parameters:,} parameters, "
        f"{study.recipe['steps']:,} steps, {study.seconds / 3600:.1f} hours of one CPU core."
    )
