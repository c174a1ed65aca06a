"""Times one optimizer step: every strategy and backend of ours, PyTorch's AdamW and third parties.

    python benchmarks/optimizer_step.py                    # under ten minutes on two cores
    python benchmarks/optimizer_step.py --check            # the bars of the cpu backend, at large sizes
    python benchmarks/optimizer_step.py --thorough --json report.json --markdown --check

Only `optimizer.step()` is timed. The baseline, `torch.optim.AdamW(fused=True)` on float32, takes its turn in
every round, and the ratio is the median of the rounds' ratios. Sizes are powers of 1024.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from time import monotonic

import torch
from rich.console import Console

from timing import tables
from timing.bars import judge
from timing.contenders import BASELINE, OTHERS, Contender, ours
from timing.kept import ignore_what_lives
from timing.machine import this_machine
from timing.measuring import Bench, Pace
from timing.results import Case, Report
from timing.workloads import Workload, gpt_tensors, one_tensor, parse_size, size_name

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is timed. `limit` is seconds for the rounds of one case, `budget` for all; beyond them is skipped."""

    sizes: Sequence[str]
    widths: Sequence[int]
    rounds: int = 15
    limit: float = FOREVER
    budget: float = FOREVER
    compiled_at: Sequence[str] | None = None
    """Sizes at which contenders that compile for every shape are timed; None: at all."""
    only: Sequence[str] = ("*",)

    def workloads(self) -> list[Workload]:
        """Single tensors by size, then the GPTs."""
        return [one_tensor(parse_size(size)) for size in self.sizes] + [gpt_tensors(w) for w in self.widths]

    def wants(self, contender: Contender) -> bool:
        """Whether its name is asked for."""
        return any(fnmatch(contender.name, pattern) for pattern in self.only)

    def compiles_for(self, workload: Workload) -> bool:
        """Whether contenders that compile are timed on it."""
        return self.compiled_at is None or workload.name in self.compiled_at


PLANS = {
    "default": Plan(("1k", "64k", "1M", "4M", "16M", "64M"), (224,), 15, 12.0, 540.0, ("4M",)),
    "quick": Plan(("1k", "256k"), (32,), 3, 1.0, 30.0, ()),
    "check": Plan(("4M", "16M", "64M", "128M"), (224, 768), only=("* (cpu)",)),
    "thorough": Plan(("1k", "64k", "1M", "4M", "16M", "64M", "128M"), (224, 768)),
}


def measure(plan: Plan, dtype: torch.dtype, device: torch.device, console: Console) -> Report:
    """Time all of a plan: fast backends first, so that a short budget leaves out what matters least."""
    machine = this_machine(device)
    if machine.busy:
        console.print(f"the machine is busy (load {machine.load_before:.1f}): take no figures from this run")
    ignore_what_lives()
    start = monotonic()
    contenders = [one for one in (*ours(dtype), *OTHERS) if plan.wants(one)]
    contenders.sort(key=lambda one: (one.backend == "reference", one.backend is None))
    cases: list[Case] = []
    try:
        for case in _cases(contenders, plan, device, start):
            cases.append(case)
            console.print(f"{monotonic() - start:5.0f} s  {_line(case)}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("stopped; this is what was measured until then")
    return Report(
        finished=datetime.now(UTC),
        seconds=monotonic() - start,
        machine=machine,
        baseline=BASELINE.name,
        cases=tuple(cases),
    )


def _cases(contenders: Sequence[Contender], plan: Plan, device: torch.device, start: float) -> Iterator[Case]:
    """Backend by backend, workload by workload, one contender at a time beside the baseline."""
    pace = Pace(plan.limit, plan.rounds)
    for _, some in groupby(contenders, key=lambda one: one.backend):
        group = list(some)
        for workload in plan.workloads():
            bench = Bench(workload, device, pace)
            for contender in group:
                if monotonic() - start > plan.budget:
                    yield bench.skipped(contender, "the budget was spent")
                elif contender.compiles and not plan.compiles_for(workload):
                    yield bench.skipped(contender, "compiles for every shape")
                else:
                    yield bench.case(contender)


def _line(case: Case) -> str:
    timings = "  ".join(f"{timing.statistics} {timing.ratio.middle:.2f}" for timing in case.timings)
    return f"{case.contender}, {case.workload}: {timings or f'{case.status}, {case.reason}'}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="seconds, to see that everything runs")
    which.add_argument(
        "--thorough", action="store_true", help="everything everywhere; hours on a small machine"
    )
    which.add_argument("--read", type=Path, metavar="FILE", help="time nothing, take a report written before")
    parser.add_argument(
        "--check", action="store_true", help="hold the cpu backend against its bars; exit 1 below"
    )
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help="parameters in one tensor, as 64k 128M")
    parser.add_argument(
        "--widths", nargs="*", type=int, metavar="WIDTH", help="GPTs of 150 tensors; 768: 124M"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="contenders by name, as 'plus (*)' '*optimi*'"
    )
    parser.add_argument("--rounds", type=int, help="turns of each")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="skip a case whose rounds take longer")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no case after so long")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="storage of ours"
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu or cuda")
    parser.add_argument("--backend", default="cpu", help="the one that --check judges")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the report (standard output)"
    )
    parser.add_argument(
        "--markdown",
        nargs="?",
        type=Path,
        const=PAGE,
        metavar="PAGE",
        help="put the tables into docs/performance.md",
    )
    return parser.parse_args(arguments)


def plan_for(options: argparse.Namespace) -> Plan:
    """The plan that the options name, with what they change in it."""
    name = (
        "quick"
        if options.quick
        else "thorough"
        if options.thorough
        else "check"
        if options.check
        else "default"
    )
    given = {
        key: getattr(options, key)
        for key in ("sizes", "widths", "rounds", "limit", "budget", "only")
        if getattr(options, key) is not None
    }
    plan = replace(PLANS[name], **given)
    return replace(plan, sizes=[size_name(parse_size(size)) for size in plan.sizes])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read, show, write; 1 if a bar was not reached."""
    options = parse(arguments)
    console = Console(stderr=options.json == "-", width=200 if not sys.stdout.isatty() else None)
    if options.markdown:
        tables.around_marks(options.markdown)  # rather now than after hours
    if options.read:
        report = Report.model_validate_json(options.read.read_text(encoding="utf-8"))
    else:
        dtype = getattr(torch, options.dtype)
        report = measure(plan_for(options), dtype, options.device, Console(stderr=True))
    for grid in (tables.steps(report), tables.statistics(report)):
        if grid.rows:
            tables.show(console, grid)
    for line in tables.remarks(report):
        console.print(line, highlight=False, soft_wrap=True)
    if options.json == "-":
        sys.stdout.write(report.model_dump_json(indent=1) + "\n")
    elif options.json:
        Path(options.json).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        tables.write_between_marks(options.markdown, tables.markdown(report))
    if not options.check:
        return 0
    bars = judge(report, options.backend)
    tables.show(console, tables.judgement(bars))
    return int(not all(bar.passed for bar in bars if bar.binding))


if __name__ == "__main__":
    sys.exit(main())
