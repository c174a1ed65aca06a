"""One contender on one workload: warmed up, weighed, and timed in turns with the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from .contenders import BASELINE, Contender, choose
from .kept import living_bytes
from .machine import version_of
from .results import Case, Figure, Statistics, Timing
from .turns import Clock, Runner, alternate, clock_for, quartiles, ratios, repeats_for
from .workloads import Workload, gradients_differ, parameters_of, refill_gradients, weights_moved

WARM_UP = 2
"""Steps before anything counts: the first makes the state, and compiles."""

TURN = "baseline"


class Unfit(Exception):  # noqa: N818 (no error: the case is reported as not measured)
    """Why a case is not measured, in words."""


@dataclass(slots=True)
class Pace:
    """How long steps took so far, so that hopeless cases are not even begun.

    `limit` is what the rounds of one case may take, in seconds, the baseline's turns not counted.
    """

    limit: float
    rounds: int
    seen: dict[tuple[str, Statistics], float] = field(default_factory=dict)

    def note(self, contender: Contender, statistics: Statistics, seconds: float, numel: int) -> None:
        """Remember the seconds of one step; those of small tensors say nothing of large ones."""
        if numel >= 1 << 18:
            self.seen[contender.name, statistics] = seconds / numel

    def expected(self, contender: Contender, statistics: Statistics, numel: int) -> float:
        """Seconds of one step; 0 where nothing is known."""
        return self.seen.get((contender.name, statistics), 0.0) * numel

    def check(self, seconds: float, taken: float = 0.0) -> float:
        """Seconds that the rounds take with steps of that length. Raises Unfit where the limit forbids it."""
        total = seconds * self.rounds
        if taken + total > self.limit:
            raise Unfit(f"{self.rounds} rounds would take {taken + total:.0f} s")
        return total


class Bench:
    """A workload, and the baseline's optimizer on it, which stays while the contenders come and go.

    It is made for the first contender that is really timed.
    """

    def __init__(self, workload: Workload, device: torch.device, pace: Pace) -> None:
        self.workload = workload
        self._device = device
        self._pace = pace
        self._clock: Clock = clock_for(device)
        self._baseline: Optimizer | None = None

    def case(self, contender: Contender) -> Case:
        """Measure one contender; whatever goes wrong with it becomes the case's reason."""
        reason = contender.absent(self._device)
        if reason is not None:
            return self._blank(contender)(status="absent", reason=reason)
        try:
            self._pace.check(self._pace.expected(contender, "off", self.workload.numel))
            return self._measure(contender)
        except Unfit as unfit:
            return self.skipped(contender, str(unfit))
        except Exception as error:  # noqa: BLE001 (a third party's fault must not end the run)
            words = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            return self._blank(contender)(status="failed", reason=words)

    def skipped(self, contender: Contender, reason: str) -> Case:
        """A case that is not measured."""
        return self._blank(contender)(status="skipped", reason=reason)

    def _blank(self, contender: Contender) -> Callable[..., Case]:
        version = version_of(contender.package) if contender.package else None
        return partial(
            Case,
            contender=contender.name,
            package=f"{contender.package} {version}" if version else contender.package,
            strategy=contender.strategy,
            backend=contender.backend,
            dtype=str(contender.dtype).removeprefix("torch."),
            workload=self.workload.name,
            numel=self.workload.numel,
            tensors=self.workload.tensors,
        )

    def _measure(self, contender: Contender) -> Case:
        baseline = self._baseline = self._baseline or BASELINE.build(
            parameters_of(self.workload, BASELINE.dtype, self._device)
        )
        baseline_seconds = self._warm_up(baseline)
        before = living_bytes()
        params = parameters_of(self.workload, contender.dtype, self._device)
        optimizer = contender.build(params)
        steps, missing = self._warm_ups(contender, optimizer)
        choose(optimizer, "off")
        kept = living_bytes() - before
        writes = gradients_differ(params)
        runners = {TURN: Runner(baseline.step)}
        repeats = {TURN: repeats_for(baseline_seconds)}
        for statistics, seconds in steps.items():
            runners[statistics] = Runner(
                optimizer.step, partial(_prepare, optimizer, statistics, params if writes else [])
            )
            repeats[statistics] = repeats_for(seconds)
        samples = alternate(runners, repeats, self._pace.rounds, self._clock)
        if not weights_moved(params, self.workload):
            raise RuntimeError("the weights did not move, or are no longer finite")
        return self._blank(contender)(
            status="measured",
            reason="; ".join(missing) or None,
            rounds=self._pace.rounds,
            repeats=repeats["off"],
            baseline_seconds=quartiles(samples[TURN]),
            bytes_per_parameter=kept / self.workload.numel,
            writes_gradients=writes,
            timings=tuple(_timing(statistics, samples) for statistics in steps),
        )

    def _warm_ups(
        self, contender: Contender, optimizer: Optimizer
    ) -> tuple[dict[Statistics, float], list[str]]:
        """Seconds of one step with each choice of statistics that the limit allows, and why others are missing.

        Raises Unfit if it allows none.
        """
        pace, numel = self._pace, self.workload.numel
        steps: dict[Statistics, float] = {}
        missing: list[str] = []
        taken = 0.0
        for statistics in contender.statistics:
            try:
                pace.check(pace.expected(contender, statistics, numel), taken)
                choose(optimizer, statistics)
                seconds = self._warm_up(optimizer)
                pace.note(contender, statistics, seconds, numel)
                taken += pace.check(seconds, taken)
                steps[statistics] = seconds
            except Unfit as unfit:
                if statistics == "off":
                    raise
                missing.append(f"{statistics}: {unfit}")
        return steps, missing

    def _warm_up(self, optimizer: Optimizer) -> float:
        """Seconds of the last of some steps."""
        return [self._clock(optimizer.step, 1) for _ in range(WARM_UP)][-1]


def _prepare(optimizer: Optimizer, statistics: Statistics, refill: list[Parameter]) -> None:
    choose(optimizer, statistics)
    refill_gradients(refill)


def _timing(statistics: Statistics, samples: Mapping[str, list[float]]) -> Timing:
    mine, baseline = samples[statistics], samples[TURN]
    ratio, seconds = quartiles(ratios(mine, baseline)), quartiles(mine)
    added = None
    if statistics != "off":
        more = quartiles(ratios(mine, samples["off"]))
        added = Figure(middle=more.middle - 1, low=more.low - 1, high=more.high - 1)
    return Timing(
        statistics=statistics,
        seconds=seconds,
        ratio=ratio,
        ratio_of_medians=seconds.middle / quartiles(baseline).middle,
        added=added,
    )
