"""Times steps side by side: memory speed drifts on shared machines, so all of them take turns in one loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from statistics import median, quantiles
from time import perf_counter

import torch

from .results import Figure

Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""Seconds that so many calls take."""

SAMPLE_SECONDS = 2e-3
"""A shorter step is repeated until it takes about this long."""
MAX_REPEATS = 200


@dataclass(frozen=True, slots=True)
class Runner:
    """One of those that take turns: what is timed, and what happens before, untimed."""

    step: Call
    prepare: Call = field(default=lambda: None)


def clock_for(device: torch.device) -> Clock:
    """A GPU is timed by its own events, which include waiting for the host, as a training loop would."""
    return _gpu_seconds if device.type == "cuda" else _seconds


def _seconds(call: Call, repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return perf_counter() - start


def _gpu_seconds(call: Call, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def repeats_for(seconds: float) -> int:
    """How often a step of that length is repeated in one sample."""
    return min(MAX_REPEATS, max(1, ceil(SAMPLE_SECONDS / max(seconds, 1e-9))))


def alternate(
    runners: Mapping[str, Runner], repeats: Mapping[str, int], rounds: int, clock: Clock
) -> dict[str, list[float]]:
    """Seconds per step of each, one figure a round: in every round each has its turn, in the order given."""
    samples: dict[str, list[float]] = {name: [] for name in runners}
    with _no_collection():
        for _ in range(rounds):
            for name, runner in runners.items():
                runner.prepare()
                samples[name].append(clock(runner.step, repeats[name]) / repeats[name])
    return samples


def ratios(samples: list[float], to: list[float]) -> list[float]:
    """Round by round, so that whatever slowed both down drops out."""
    return [mine / theirs for mine, theirs in zip(samples, to, strict=True)]


def quartiles(values: list[float]) -> Figure:
    """Median and quartiles of at least two values."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Figure(middle=median(values), low=low, high=high)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection in anybody's turn, as in `timeit`."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
