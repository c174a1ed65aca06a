"""Measures what delivery costs a training: time in its thread, memory, disk, and the time at its end.

    python benchmarks/delivery.py                 # about five minutes on two cores
    python benchmarks/delivery.py --quick         # seconds, to see that it runs
    python benchmarks/delivery.py --json d.json --markdown --check

Each figure comes from a process of its own run, on loopback; times of calls are percentiles over all calls of one run.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import psutil
import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console

import roundoff
from marks import DOCS, table
from reports import add_options, publish
from roundoff.delivery import GroupSetting, Notices, Sample
from roundoff.delivery.queue import BACKLOG_BYTES, INBOX_BYTES
from roundoff.delivery.spool import writers
from roundoff.delivery.sync import send_left
from roundoff.demo.serving import serving
from roundoff.metrics import ROW
from roundoff.wire import Layer
from timing.machine import Machine, this_machine

LAYERS = 100
HOOKED_LAYERS = 10
"""Of the model whose hooks are timed. A sampled step's own work grows by some 30 µs for each: watching.md has more."""

WARM_UP = 100

CALL_LIMIT_S, MEMORY_LIMIT = 1e-3, INBOX_BYTES + BACKLOG_BYTES


class Calls(BaseModel):
    """Seconds of one kind of call in the training thread."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    calls: int
    median: float
    p99: float
    p999: float
    longest: float

    @property
    def passed(self) -> bool:
        """Whether 999 of 1,000 take less than a millisecond."""
        return self.p999 < CALL_LIMIT_S


class Report(BaseModel):
    """All figures, and where they were measured. Rates are per second, sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: datetime
    machine: Machine
    calls: tuple[Calls, ...]
    outage_calls: int
    memory_grown: int
    value_bytes: float
    layer_bytes: float
    values_sent_per_s: float
    rows_sent_per_s: float

    @property
    def passed(self) -> bool:
        """Whether every limit is kept to."""
        return all(one.passed for one in self.calls) and self.memory_grown < MEMORY_LIMIT


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def timed(what: str, call: Callable[[], object], calls: int, between: Callable[[], object] | None) -> Calls:
    """Time every one of `calls` calls; `between` is what the training does meanwhile, untimed."""
    took = []
    for _ in range(calls):
        if between is not None:
            between()
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return summarized(what, took)


def summarized(what: str, seconds: list[float]) -> Calls:
    """Percentiles over all calls."""
    took, calls = sorted(seconds), len(seconds)
    return Calls(
        what=what,
        calls=calls,
        median=statistics.median(took),
        p99=took[int(0.99 * calls)],
        p999=took[int(0.999 * calls)],
        longest=took[-1],
    )


def handing_over(run: roundoff.Run) -> Callable[[], None]:
    """A call as a watch's hook makes it: a step of `LAYERS` layers, its sums on the device."""
    intake = run._intake
    assert intake is not None
    intake.declare(
        [Layer(index=i, name=f"layer.{i}", shape=[10], numel=10, dtype="bfloat16") for i in range(LAYERS)]
    )
    steps, sums = count(), torch.rand(LAYERS, len(ROW), dtype=torch.float64).round(decimals=3) * 1000 // 1
    groups = [GroupSetting(0, 1e-3, 0.1)]
    return lambda: intake.sample(Sample(next(steps), range(LAYERS), sums, None, groups))


def measure_calls(calls: int, spool: Path) -> Iterator[Calls]:
    """Calls against a black hole: at once, and between pieces of work that leave the interpreter lock."""
    one = torch.rand(128, 128)
    work = lambda: one @ one  # noqa: E731
    for between, how in ((None, "without pause"), (work, "between work")):
        with black_hole() as address:
            run = roundoff.init("benchmark", server=address, spool=spool)
            yield timed(f"`run.log`, {how}", lambda run=run: run.log({"loss": 1.0}), calls, between)  # type: ignore[misc]
            run.finish(timeout=0)
            run = roundoff.init("benchmark", server=address, spool=spool)
            yield timed(f"a sample of {LAYERS} layers, {how}", handing_over(run), calls // 10, between)
            run.finish(timeout=0)


class Stopwatch:
    """Times what an optimizer's hooks take that are registered between `begin` and `end`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._began = self._spent = 0.0
        self.took: list[float] = []

    def begin(self) -> None:
        """The hooks that come now are timed."""
        self._optimizer.register_step_pre_hook(lambda *_: self._start())
        self._optimizer.register_step_post_hook(lambda *_: self._start())

    def end(self) -> None:
        """Those that come now are not."""
        self._optimizer.register_step_pre_hook(lambda *_: self._before())
        self._optimizer.register_step_post_hook(lambda *_: self._after())

    def _start(self) -> None:
        self._began = time.perf_counter()

    def _before(self) -> None:
        self._spent = time.perf_counter() - self._began

    def _after(self) -> None:
        self.took.append(self._spent + time.perf_counter() - self._began)


def measure_hooks(calls: int, spool: Path) -> Calls:
    """The watch's own work around a step, against a black hole, sampled as by default."""
    weights = [torch.nn.Parameter(torch.randn(16).bfloat16()) for _ in range(HOOKED_LAYERS)]
    for weight in weights:
        weight.grad = torch.randn(16).bfloat16()
    optimizer = roundoff.CollageAdamW(weights)
    stopwatch = Stopwatch(optimizer)
    with black_hole() as address:
        run = roundoff.init("benchmark", server=address, spool=spool)
        stopwatch.begin()
        watch = run.watch(torch.nn.ParameterList(weights), optimizer)
        stopwatch.end()
        assert watch is not None
        for _ in range(WARM_UP):  # it loads what it needs
            optimizer.step()
        before = watch.history.samples
        for _ in range(calls):
            optimizer.step()
        sampled = watch.history.samples - before
        run.finish(timeout=0)
    what = f"the hooks of a watch of {HOOKED_LAYERS} layers, {sampled:,} steps sampled"
    return summarized(what, stopwatch.took[WARM_UP:])


def measure_memory(calls: int, spool: Path) -> int:
    """Bytes by which the process grows at most over `calls` calls without a server."""
    run = roundoff.init("benchmark", server="http://127.0.0.1:9", spool=spool)
    process = psutil.Process()
    before = most = int(process.memory_info().rss)
    for step in range(calls):
        run.log({"loss": 1.0}, step=step)
        if step % 10_000 == 0:
            most = max(most, process.memory_info().rss)
    run.finish(timeout=0)
    return most - before


def measure_spool(steps: int, root: Path, address: str) -> tuple[float, float, float, float]:
    """Bytes on disk per value and per layer row, and how many of each a second `roundoff sync` sends to a server."""
    values, rows = root / "values", root / "rows"
    run = roundoff.init("benchmark", "values", mode="offline", spool=values)
    for step in range(steps):
        run.log({"loss": 1.0}, step=step)
        time.sleep(0.0001)
    run.finish()
    run = roundoff.init("benchmark", "rows", mode="offline", spool=rows)
    hand_over = handing_over(run)
    for _ in range(steps // 10):
        hand_over()
        time.sleep(0.001)
    run.finish()
    counted = (steps, steps // 10 * LAYERS)
    sizes, rates = [], []
    for folder, number in zip((values, rows), counted, strict=True):
        sizes.append(sum(path.stat().st_size for path in folder.rglob("0*.spool")) / number)
        began = time.perf_counter()
        for writer in writers(folder):
            if (left := send_left(writer, address, None, 30.0, Notices())).state != "sent":
                raise RuntimeError(f"not sent: {left.problem}")
        rates.append(number / (time.perf_counter() - began))
    return sizes[0], sizes[1], rates[0], rates[1]


def measure(quick: bool) -> Report:
    """Everything, one after another."""
    machine = this_machine(torch.device("cpu"))
    calls, outage, steps = (5_000, 50_000, 2_000) if quick else (100_000, 2_000_000, 50_000)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        timed_calls = (*measure_calls(calls, root / "calls"), measure_hooks(calls, root / "hooks"))
        grown = measure_memory(outage, root / "memory")
        with serving(None, f"sqlite:///{root / 'served.db'}") as (address, _):
            value_bytes, layer_bytes, values_rate, rows_rate = measure_spool(steps, root, address)
    return Report(
        finished=datetime.now(UTC),
        machine=machine,
        calls=timed_calls,
        outage_calls=outage,
        memory_grown=grown,
        value_bytes=value_bytes,
        layer_bytes=layer_bytes,
        values_sent_per_s=values_rate,
        rows_sent_per_s=rows_rate,
    )


def markdown(report: Report) -> str:
    """The tables for the page."""

    def micro(seconds: float) -> str:
        return f"{seconds * 1e6:,.1f} µs"

    calls = [
        [one.what, f"{one.calls:,}", *map(micro, (one.median, one.p99, one.p999, one.longest))]
        for one in report.calls
    ]
    others = [
        [
            f"memory that {report.outage_calls:,} log calls without a server add, at most",
            f"{report.memory_grown / 2**20:.1f} MiB (cap {MEMORY_LIMIT / 2**20:.0f} MiB)",
        ],
        ["spool on disk, per logged value", f"{report.value_bytes:.0f} bytes"],
        ["spool on disk, per layer and sampled step", f"{report.layer_bytes:.0f} bytes"],
        [
            "`roundoff sync` to a server on this machine, values",
            f"{report.values_sent_per_s:,.0f} per second",
        ],
        [
            "`roundoff sync` to a server on this machine, layer rows",
            f"{report.rows_sent_per_s:,.0f} per second",
        ],
    ]
    return (
        f"Measured on {report.finished:%Y-%m-%d}: {report.machine.sentence}; load before it "
        f"{report.machine.load_before or 0:.1f}. The server takes connections and never answers.\n\n"
        f"{table(['call in the training thread', 'calls', 'median', '99 %', '99.9 %', 'longest'], calls)}\n\n"
        f"{table(['', ''], others)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read, show, write; 1 where a limit is broken and `--check` was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few calls: the figures mean nothing")
    add_options(parser, "delivery.md", read="measure nothing", check="a limit is broken")
    options = parser.parse_args(arguments)
    if options.read:
        report = Report.model_validate_json(options.read.read_text(encoding="utf-8"))
    else:
        report = measure(options.quick)
    publish(report, markdown(report), options, DOCS / "delivery.md", "delivery", Console())
    return int(options.check and not report.passed)


if __name__ == "__main__":
    sys.exit(main())
