"""Holds the forecast against what then happens: the demo's model in plain bfloat16, at half of a cosine schedule.

    python benchmarks/forecast.py                       # three seeds, 300 steps each: some minutes on two cores
    python benchmarks/forecast.py --json f.json --markdown --check

The learning rate rises for a tenth of the run and falls along half a cosine to 0. At half of the run one sample tells
the rest; then training goes on, every fifth step is measured, and the steps at which the figures really cross the
levels are looked up.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from torch import nn
from torch.nn import functional

import roundoff
from marks import DOCS, table
from reports import add_options, publish
from roundoff.delivery.sample import Sample
from roundoff.demo.model import Decoder, Shape
from roundoff.demo.text import Text, draw_batch, load_text
from roundoff.metrics import ROW
from roundoff.wire import Layer
from timing.machine import Machine, this_machine

EVERY = 5
PEAK_LR = 1e-3
BATCH = 8
LOST = 0.8
EFFICIENCY = 0.5
WITHIN = 0.1
"""Share of the run's length that a forecast may be off by."""


class Foretold(BaseModel):
    """One run: the steps that were named at half of it, and those at which it happened; None for never."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    steps: int
    made_at: int
    efficiency_named: int | None
    efficiency_measured: int | None
    lost_named: int | None
    lost_measured: int | None

    @property
    def pairs(self) -> list[tuple[int | None, int | None]]:
        """Named and measured, of efficiency and of lost updates."""
        return [
            (self.efficiency_named, self.efficiency_measured),
            (self.lost_named, self.lost_measured),
        ]

    @property
    def good(self) -> bool:
        """Whether all were named within a tenth of the run's length; what never happened must not be named."""
        return all(
            named is not None and measured is not None and abs(named - measured) <= WITHIN * self.steps
            for named, measured in self.pairs
        )


class Report(BaseModel):
    """All runs, and where they were made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: datetime
    machine: Machine
    runs: tuple[Foretold, ...]


class Kept:
    """A sink that keeps the model's lost fraction and efficiency by step."""

    def __init__(self) -> None:
        self.figures: list[tuple[int, float, float]] = []

    def declare(self, layers: Sequence[Layer]) -> None:
        """Nothing is needed of them."""

    def sample(self, sample: Sample) -> None:
        """Add up the layers."""
        columns = [sum(column) for column in zip(*sample.sums.tolist(), strict=True)]
        total = dict(zip(ROW, columns, strict=True))
        if total["attempted"]:
            lost, efficiency = total["lost"] / total["attempted"], total["sum_ua"] / total["sum_uu"]
            self.figures.append((sample.step, lost, efficiency))


def foretell(seed: int, steps: int, text: Text) -> Foretold:
    """Train with this seed, forecast at half, and look what happens."""
    torch.manual_seed(seed)
    shape = Shape(len(text.vocabulary))
    model = Decoder(shape).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _cosine(step, steps))
    batches = torch.Generator().manual_seed(seed)
    half = steps // 2 // EVERY * EVERY
    kept = Kept()
    with roundoff.watch(model, optimizer, every=EVERY, headroom_every=1, sink=kept) as watch:
        for step in range(steps):
            _train(model, optimizer, *draw_batch(text.train, BATCH, shape.context, batches))
            scheduler.step()
            if step == half:
                told = watch.forecast(scheduler, steps - step - 1, levels=[LOST]).model
    named = {one.figure: one.step for one in told}
    after = [figures for figures in kept.figures if figures[0] > half]
    return Foretold(
        seed=seed,
        steps=steps,
        made_at=half,
        efficiency_named=named.get("descent_efficiency"),
        efficiency_measured=next((step for step, _, efficiency in after if efficiency < EFFICIENCY), None),
        lost_named=named.get("lost_fraction"),
        lost_measured=next((step for step, lost, _ in after if lost >= LOST), None),
    )


def _cosine(step: int, steps: int) -> float:
    warm_up = steps // 10
    if step < warm_up:
        return (step + 1) / warm_up
    return (1 + math.cos(math.pi * min(1.0, (step - warm_up) / (steps - warm_up)))) / 2


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def markdown(report: Report) -> str:
    """The table for the page."""
    header = [
        "seed",
        "efficiency 0.5 named",
        "measured",
        "80 % lost named",
        "measured",
        "within a tenth of the run",
    ]
    rows = [
        [str(run.seed), *(_step(step) for pair in run.pairs for step in pair), "yes" if run.good else "no"]
        for run in report.runs
    ]
    first = report.runs[0]
    return (
        f"Made on {report.finished:%Y-%m-%d}; {first.steps} steps, forecast at step {first.made_at}, every "
        f"{EVERY}th step measured: {report.machine.sentence}.\n\n{table(header, rows)}"
    )


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train or read, show, write; 1 where a forecast was further off than it may be and `--check` was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="length of a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add_options(parser, "forecast.md", read="train nothing", check="a forecast is off by a tenth of the run")
    options = parser.parse_args(arguments)
    console = Console()
    if options.read:
        report = Report.model_validate_json(options.read.read_text(encoding="utf-8"))
    else:
        machine, text = this_machine(torch.device("cpu")), load_text()
        runs = []
        for seed in options.seeds:
            runs.append(foretell(seed, options.steps, text))
            console.print(runs[-1])
        report = Report(finished=datetime.now(UTC), machine=machine, runs=tuple(runs))
    publish(report, markdown(report), options, DOCS / "forecast.md", "forecast", console)
    return int(options.check and not all(run.good for run in report.runs))


if __name__ == "__main__":
    sys.exit(main())
