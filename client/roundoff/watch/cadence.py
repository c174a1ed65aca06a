"""Which optimizer steps are measured: every n-th, by a table, or as many as a run of any length needs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Literal, Protocol, SupportsIndex

Every = SupportsIndex | Mapping[int, int] | Literal["auto"]
"""Steps from one sample to the next: a number, a table of them by the step from which they hold, or "auto"."""

DENSE_STEPS = 32
"""Steps at the start of a watch that "auto" measures one by one …"""

INTERVAL = 10
"""… then every tenth one …"""

SPREAD = 400
"""… until a sample every 400th part of the steps so far is less than that."""

FOLLOWED = 10
"""Samples every `INTERVAL` steps that "auto" adds after a verdict has changed."""


class Cadence(Protocol):
    """Tells the steps to measure. `step` counts optimizer steps from 0."""

    @property
    def looks(self) -> bool:
        """Whether it goes by the verdicts."""

    def first(self, step: int) -> int:
        """The first step to measure, from `step` on."""

    def after(self, step: int, *, changed: bool) -> int:
        """The step to measure after `step`, which has been; `changed`: a verdict became another one."""


def cadence(every: Every) -> Cadence:
    """The cadence for what a user asks for. Raises ValueError for what is no interval, TypeError for no number."""
    if isinstance(every, str):
        if every != "auto":
            raise ValueError(f'every must be a number of steps, a table or "auto", got {every!r}')
        return Automatic()
    table = every if isinstance(every, Mapping) else {0: every}
    intervals: dict[int, int] = {}
    for start, interval in table.items():
        try:
            intervals[operator.index(start)] = operator.index(interval)
        except TypeError:
            raise TypeError(
                f"every must hold whole numbers of steps, got {start!r}: {interval!r}"
                if isinstance(every, Mapping)
                else f'every must be a whole number of steps, a table or "auto", got {interval!r}'
            ) from None
    if not intervals or min(intervals.values()) < 1 or min(intervals) < 0:
        raise ValueError(
            f"every must be 1 or larger, got {every!r}"
            if not isinstance(every, Mapping)
            else f"every must map first steps (0 or more) to intervals (1 or larger), got {dict(every)!r}"
        )
    return Stepped(intervals)


class Stepped:
    """Steps that an interval divides; which interval, a table tells by the step from which it holds.

    Before the first step of the table nothing is measured.
    """

    looks = False

    def __init__(self, intervals: Mapping[int, int]) -> None:
        self._intervals = sorted(intervals.items())

    def first(self, step: int) -> int:
        """The first step to measure, from `step` on."""
        found = [self._within(number, step) for number in range(len(self._intervals))]
        return min(one for one in found if one is not None)

    def after(self, step: int, *, changed: bool) -> int:  # noqa: ARG002
        """The step to measure after `step`."""
        return self.first(step + 1)

    def _within(self, number: int, step: int) -> int | None:
        start, interval = self._intervals[number]
        found = -(-max(start, step) // interval) * interval
        later = self._intervals[number + 1][0] if number + 1 < len(self._intervals) else None
        return found if later is None or found < later else None


class Automatic:
    """Dense at the start and while a verdict is changing, then sparser: some 400 + 400 · ln(steps / 4000) samples.

    A run of 1,000 steps has 130, of 100,000 about 2,000, of a million 3,000, and twice as many at most if its
    verdicts keep changing. But for its first 32 steps it is never denser than every tenth, which is what the cost of
    a watch is measured at. With `steady` no verdict is looked at, so that all ranks of a job measure the same steps.
    """

    def __init__(self, *, steady: bool = False) -> None:
        self.steady = steady
        self._began: int | None = None
        self._regular = self._added = self._follow = 0

    @property
    def looks(self) -> bool:
        """Whether it goes by the verdicts."""
        return not self.steady

    def first(self, step: int) -> int:
        """The first step to measure: at once."""
        self._began = step
        return step

    def after(self, step: int, *, changed: bool) -> int:
        """The step to measure after `step`; what was changing is followed every `INTERVAL` steps."""
        began = step if self._began is None else self._began
        if changed and not self.steady:
            self._follow = FOLLOWED
        if step - began < DENSE_STEPS:
            return step + 1
        regular = max(INTERVAL, step // SPREAD // INTERVAL * INTERVAL)
        if self._follow and regular > INTERVAL and self._added < self._regular:
            self._follow -= 1
            self._added += 1
            return _next_multiple(step, INTERVAL)
        self._regular += 1
        return _next_multiple(step, regular)


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval
