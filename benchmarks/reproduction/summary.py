"""What came out, as numbers: losses by seed, what separates a strategy from the float32 master, mean curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import date
from statistics import fmean, stdev

from pydantic import BaseModel, ConfigDict

from roundoff.optim import STRATEGIES

from .recipe import REFERENCE, Case, Recipe
from .results import Result

ARITHMETICS = ("fp32", "storage")
FIGURES = ("descent_efficiency", "norm_efficiency", "lost_fraction", "edq")
"""Figures of `results.Curve` that are kept over the steps."""

DIGITS = 4


class Row(BaseModel):
    """One strategy at one β2 in one table. `losses` is by seed; `stands_in`: its only mode is the other one."""

    model_config = ConfigDict(frozen=True)

    strategy: str
    arithmetic: str
    beta2: float
    stands_in: bool
    losses: dict[int, float]
    reference: dict[int, float]
    """The losses of the float32 master at this β2, by seed."""
    step: list[int]
    curves: dict[str, list[float | None]]
    """By the names in `FIGURES`: means over the seeds that all rows have, so that they can be compared."""

    @property
    def mean(self) -> float:
        """Mean validation loss over the seeds, nats per character."""
        return fmean(self.losses.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for one."""
        return stdev(self.losses.values()) if len(self.losses) > 1 else None

    @property
    def differences(self) -> list[float]:
        """Loss minus the float32 master's, for each seed that both have: same weights, same batches."""
        return [self.losses[seed] - self.reference[seed] for seed in self.losses if seed in self.reference]

    @property
    def within(self) -> bool | None:
        """Whether the mean lies between the float32 master's smallest and largest loss over the seeds.

        None where either has a seed that the other lacks, since seeds differ more than strategies, or for one.
        """
        if len(self.reference) < 2 or self.losses.keys() != self.reference.keys():
            return None
        return min(self.reference.values()) <= self.mean <= max(self.reference.values())


class Study(BaseModel):
    """Everything that the page is made from."""

    recipe: dict[str, int | float | None]
    parameters: int
    finished: int
    wanted: int
    seconds: float
    made: date
    rows: list[Row]

    def row(self, strategy: str, arithmetic: str, beta2: float) -> Row | None:
        """The row, if any of its runs has finished."""
        wanted = (strategy, arithmetic, beta2)
        return next((r for r in self.rows if (r.strategy, r.arithmetic, r.beta2) == wanted), None)

    @property
    def betas2(self) -> list[float]:
        """The β2 of the rows, in order."""
        return sorted({row.beta2 for row in self.rows})


def summarise(recipe: Recipe, results: Sequence[Result], wanted: int, made: date) -> Study:
    """Collect finished runs into rows, in the order of the table of strategies.

    `wanted` is how many runs the grid has. Raises ValueError without a single result.
    """
    if not results:
        raise ValueError("no run has finished yet")
    seeds: dict[Case, set[int]] = {}
    for result in results:
        seeds.setdefault(replace(result.case, seed=0), set()).add(result.seed)
    shared = set.intersection(*seeds.values())
    rows = []
    for arithmetic in ARITHMETICS:
        for name, strategy in STRATEGIES.items():
            own = arithmetic if strategy.storage_arithmetic else "fp32"
            for beta2 in sorted({result.beta2 for result in results}):
                runs = [r for r in results if (r.strategy, r.arithmetic, r.beta2) == (name, own, beta2)]
                masters = [r for r in results if (r.strategy, r.beta2) == (REFERENCE, beta2)]
                if runs:
                    rows.append(_row(arithmetic, runs, masters, shared, stands_in=own != arithmetic))
    return Study(
        recipe=asdict(recipe),
        parameters=results[0].parameters,
        finished=len(results),
        wanted=wanted,
        seconds=round(sum(result.seconds for result in results)),
        made=made,
        rows=rows,
    )


def _row(
    arithmetic: str, runs: Sequence[Result], masters: Sequence[Result], shared: set[int], *, stands_in: bool
) -> Row:
    comparable = [run.curve for run in runs if run.seed in shared] or [run.curve for run in runs]
    return Row(
        strategy=runs[0].strategy,
        arithmetic=arithmetic,
        beta2=runs[0].beta2,
        stands_in=stands_in,
        losses=_losses(runs),
        reference=_losses(masters),
        step=runs[0].curve.step,
        curves={name: _mean_curve([getattr(curve, name) for curve in comparable]) for name in FIGURES},
    )


def _losses(runs: Iterable[Result]) -> dict[int, float]:
    return {run.seed: round(run.loss, DIGITS + 1) for run in sorted(runs, key=lambda run: run.seed)}


def _mean_curve(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Pointwise mean; None where any of them is undefined."""
    points = zip(*curves, strict=True)
    return [None if None in point else float(f"{fmean(point):.{DIGITS}g}") for point in points]
