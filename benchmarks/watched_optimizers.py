"""Watches optimizers of many libraries on one toy problem: what each loses, and what watching it takes.

    python benchmarks/watched_optimizers.py                           # some minutes on two cores
    python benchmarks/watched_optimizers.py --json o.json --markdown --check

Each optimizer trains the same bfloat16 model from the same seed twice, with every step measured and without a watch:
losses, weights, state and random numbers have to be the same bits. Then single steps of both take turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from marks import DOCS, table
from reports import add_options, publish
from timing.machine import Machine, this_machine
from watched.case import BATCH, CPU, WARM_UP, WIDTH, Case, examine
from watched.contenders import CONTENDERS, as_written, versions

FEWEST = 15
"""Optimizers that the table must have."""


class Report(BaseModel):
    """All optimizers, and where they were watched."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: datetime
    machine: Machine
    libraries: tuple[str, ...]
    steps: int
    rounds: int
    cases: tuple[Case, ...]

    @property
    def passed(self) -> bool:
        """Whether there are enough, and none trains otherwise under a watch."""
        return len(self.cases) >= FEWEST and all(case.identical for case in self.cases)


def markdown(report: Report) -> str:
    """The table for the page, and why some are measured in part only."""
    header = [
        "optimizer",
        "measured by",
        "same bits",
        "updates lost",
        "efficiency",
        "extra memory",
        "sampled step / own",
    ]
    rows = [
        [
            case.label,
            case.measured,
            "yes" if case.identical else "**no**",
            "not known" if case.lost is None else f"{100 * case.lost:.1f} %",
            "not known" if case.efficiency is None else f"{case.efficiency:.3f}",
            "not counted" if case.memory is None else f"{case.memory:.0f} ×",
            f"{case.ratio.middle:.1f} ({case.ratio.low:.1f} to {case.ratio.high:.1f})",
        ]
        for case in report.cases
    ]
    said = [
        f"- {case.label}: {case.said.removeprefix('roundoff: ').splitlines()[0]}"
        for case in report.cases
        if case.said
    ]
    weights = 4 * WIDTH * WIDTH + 7 * WIDTH
    return (
        f"Made on {report.finished:%Y-%m-%d}: {report.machine.sentence}; {', '.join(report.libraries)}. "
        f"{weights:,} bfloat16 weights, batches of {BATCH}, {report.steps} steps of which the first {WARM_UP} are not "
        f"counted, every one measured; times are medians of {report.rounds} rounds (quartiles).\n\n"
        f"{table(header, rows)}\n\nWhat the watch said:\n\n" + "\n".join(said or ["- nothing"])
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch or read, show, write; 1 where the table is too short or a training changed and `--check` was given."""
    labels = [one.label for one in CONTENDERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=labels, default=labels, metavar="NAME")
    add_options(parser, "optimizers.md", read="watch nothing", check="a watch changed a training")
    options = parser.parse_args(arguments)
    console = Console()
    report = (
        Report.model_validate_json(options.read.read_text(encoding="utf-8"))
        if options.read
        else watch_all(options.only, options.steps, options.rounds, console)
    )
    publish(report, markdown(report), options, DOCS / "optimizers.md", "watched_optimizers", console)
    return int(options.check and not report.passed)


def watch_all(labels: Sequence[str], steps: int, rounds: int, console: Console) -> Report:
    """One after the other; a library that is not installed is left out and said."""
    machine, cases = this_machine(CPU), []
    for contender in CONTENDERS:
        if contender.label not in labels:
            continue
        if not contender.available:
            console.print(f"{contender.label}: {contender.library} is not installed")
            continue
        with as_written():
            cases.append(examine(contender, steps, rounds))
        one = cases[-1]
        console.print(f"{one.label}: {one.measured}, same bits {one.identical}", highlight=False)
    return Report(
        finished=datetime.now(UTC),
        machine=machine,
        libraries=tuple(versions()),
        steps=steps,
        rounds=rounds,
        cases=tuple(cases),
    )


if __name__ == "__main__":
    sys.exit(main())
