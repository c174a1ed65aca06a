"""Times training with and without a watch: the demo's model, side by side in one run.

    python benchmarks/watch_overhead.py                 # some minutes on two cores
    python benchmarks/watch_overhead.py --json w.json --markdown --check

Every contender trains a model of its own from one seed on batches of its own. In each round each has a turn of ten
steps, of which a watched one measures one; its ratio is to the turn of the same optimizer without a watch in the same
round. The table has the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from torch.nn import functional
from torch.optim import SGD, Adafactor, AdamW, Optimizer

import roundoff
from marks import DOCS, table
from reports import add_options, publish
from roundoff.delivery.sample import Sample
from roundoff.demo.model import Decoder, Shape
from roundoff.demo.text import Text, draw_batch, load_text
from roundoff.wire import Layer
from timing.machine import Machine, this_machine
from timing.results import Figure
from timing.turns import Runner, alternate, clock_for, quartiles, ratios

EVERY = 10
BATCH = 8
SHADOW_BAR, OWN_BAR = 0.06, 0.01
CPU = torch.device("cpu")

Make = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda p: AdamW(p, lr=1e-3),
    "AdamW, fused": lambda p: AdamW(p, lr=1e-3, fused=True),
    "SGD with momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9),
    "Adafactor": lambda p: Adafactor(p, lr=1e-3),
    "CollageAdamW plus": lambda p: roundoff.CollageAdamW(p, lr=1e-3, strategy="plus"),
}
"""All on bfloat16 weights."""


class Case(BaseModel):
    """One optimizer: seconds of ten steps without a watch, and what one measured step among them adds, as a share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: str
    seconds: Figure
    added: Figure
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it costs no more than it may."""
        return self.added.middle <= self.limit


class Report(BaseModel):
    """All cases, and where they were measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: datetime
    machine: Machine
    rounds: int
    cases: tuple[Case, ...]


class Nowhere:
    """A sink that keeps nothing."""

    def declare(self, layers: Sequence[Layer]) -> None:
        """Nothing."""

    def sample(self, sample: Sample) -> None:
        """Nothing."""


@dataclass(slots=True)
class Training:
    """One model in training."""

    model: Decoder
    optimizer: Optimizer
    text: Text
    batches: torch.Generator

    @classmethod
    def of(cls, make: Make, text: Text, *, watched: bool) -> Training:
        """From one seed, whatever the optimizer."""
        torch.manual_seed(0)
        model = Decoder(Shape(len(text.vocabulary))).to(torch.bfloat16)
        optimizer = make(model.parameters())
        if watched:
            roundoff.watch(model, optimizer, every=EVERY, sink=Nowhere())
        return cls(model, optimizer, text, torch.Generator().manual_seed(0))

    def turn(self) -> None:
        """Ten steps."""
        for _ in range(EVERY):
            inputs, targets = draw_batch(self.text.train, BATCH, Shape(0).context, self.batches)
            loss = functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()


def measure(name: str, rounds: int, text: Text) -> Case:
    """Time one optimizer with and without a watch, in turns."""
    trainings = {watched: Training.of(OPTIMIZERS[name], text, watched=watched) for watched in (False, True)}
    runners = {str(watched): Runner(training.turn) for watched, training in trainings.items()}
    alternate(runners, dict.fromkeys(runners, 1), 1, clock_for(CPU))
    samples = alternate(runners, dict.fromkeys(runners, 1), rounds, clock_for(CPU))
    more = quartiles(ratios(samples["True"], samples["False"]))
    return Case(
        optimizer=name,
        seconds=quartiles(samples["False"]),
        added=Figure(middle=more.middle - 1, low=more.low - 1, high=more.high - 1),
        limit=OWN_BAR if name.startswith("CollageAdamW") else SHADOW_BAR,
    )


def markdown(report: Report) -> str:
    """The table for the page."""
    rows = [
        [
            case.optimizer,
            f"{case.seconds.middle / EVERY * 1e3:.0f} ms",
            f"{case.added.middle:+.1%} ({case.added.low:+.1%} to {case.added.high:+.1%})".replace("%", " %"),
            f"{case.added.middle * EVERY:+.0%}".replace("%", " %"),
            f"{case.limit:.0%}".replace("%", " %"),
        ]
        for case in report.cases
    ]
    header = [
        "optimizer",
        "training step without a watch",
        "every tenth measured adds",
        "every one would add",
        "bar",
    ]
    return (
        f"Measured on {report.finished:%Y-%m-%d}: {report.machine.sentence}; medians of {report.rounds} rounds "
        f"(quartiles); load before it {report.machine.load_before or 0:.1f}.\n\n{table(header, rows)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read, show, write; 1 where a watch cost more than it may and `--check` was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), metavar="NAME")
    add_options(parser, "watching.md", read="time nothing", check="a watch costs more than it may")
    options = parser.parse_args(arguments)
    console = Console()
    if options.read:
        report = Report.model_validate_json(options.read.read_text(encoding="utf-8"))
    else:
        machine, text = this_machine(CPU), load_text()
        if machine.busy:
            console.print(
                f"the machine is busy (load {machine.load_before:.1f}): take no figures from this run"
            )
        cases = []
        for name in options.only:
            cases.append(measure(name, options.rounds, text))
            console.print(f"{name}: {cases[-1].added.middle:+.2%}", highlight=False)
        report = Report(
            finished=datetime.now(UTC), machine=machine, rounds=options.rounds, cases=tuple(cases)
        )
    publish(report, markdown(report), options, DOCS / "watching.md", "watch_overhead", console)
    return int(options.check and not all(case.passed for case in report.cases))


if __name__ == "__main__":
    sys.exit(main())
