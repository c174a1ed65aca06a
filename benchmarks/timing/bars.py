"""What the step has to reach, held against a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from roundoff.optim import STRATEGIES
from roundoff.optim.strategies import WORD_BYTES, Strategy

from .results import Case, Figure, Report

FOUR_M, LARGE = 1 << 22, 1 << 27

AT_LARGE = {"light": 0.75, "plus": 0.90, "exact": 0.95}
"""Ratio to the baseline at 128 M parameters: what the bytes that are moved allow, and some."""
FROM_FOUR_M = 1.05
SUMS_AT_LARGE, SUMS_FROM_FOUR_M = 0.25, 0.45
MANY_TENSORS = 1.0
BYTES_OFF = 0.01


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure and what it may be at most. `binding` is False for strategies that are only told of."""

    what: str
    strategy: str
    limit: float
    value: float | None
    spread: Figure | None
    where: str
    binding: bool = True

    @property
    def passed(self) -> bool:
        """What was not measured has not passed."""
        return self.value is not None and self.value <= self.limit


def judge(report: Report, backend: str = "cpu") -> list[Bar]:
    """Every bar for the cases of one backend, bfloat16."""
    cases = [case for case in report.cases if case.backend == backend and case.dtype == "bfloat16"]
    return [
        bar
        for name, strategy in STRATEGIES.items()
        for bar in _bars(strategy, [case for case in cases if case.strategy == name])
    ]


def _bars(strategy: Strategy, cases: list[Case]) -> Iterator[Bar]:
    single = [case for case in cases if case.tensors == 1]
    large = [case for case in single if case.numel == LARGE]
    from_four = [case for case in single if case.numel >= FOUR_M]
    many = [case for case in cases if case.tensors > 1]
    words = all(tensor.bytes == WORD_BYTES for tensor in strategy.state)
    name = strategy.name
    if name in AT_LARGE:
        yield _worst("step, 128M", name, AT_LARGE[name], large, _ratio)
    yield _worst("step, from 4M up", name, FROM_FOUR_M, from_four, _ratio, binding=words)
    yield _worst("step, many tensors", name, MANY_TENSORS, many, _ratio, binding=words)
    yield _worst("sums add, 128M", name, SUMS_AT_LARGE, large, _added)
    yield _worst("sums add, from 4M up", name, SUMS_FROM_FOUR_M, from_four, _added)
    yield _bytes(strategy, from_four)


def _ratio(case: Case) -> Figure | None:
    timing = case.timing("off")
    return None if timing is None else timing.ratio


def _added(case: Case) -> Figure | None:
    timing = case.timing("sums")
    return None if timing is None else timing.added


def _worst(
    what: str,
    strategy: str,
    limit: float,
    cases: Iterable[Case],
    figure_of: Callable[[Case], Figure | None],
    *,
    binding: bool = True,
) -> Bar:
    """The largest of the cases' figures; no value if there is no case or any of them has no figure."""
    found = [(case, figure_of(case)) for case in cases]
    figures = [(figure.middle, figure, case.workload) for case, figure in found if figure is not None]
    if not figures or len(figures) < len(found):
        return Bar(what, strategy, limit, None, None, "not measured", binding)
    value, figure, where = max(figures, key=lambda entry: entry[0])
    return Bar(what, strategy, limit, value, figure, where, binding)


def _bytes(strategy: Strategy, cases: list[Case]) -> Bar:
    """How far the bytes are from the table of strategies; what is kept once per tensor is nothing here."""
    off = [
        (abs(case.bytes_per_parameter - strategy.bytes_per_parameter), case.workload)
        for case in cases
        if case.bytes_per_parameter is not None
    ]
    value, where = max(off) if off else (None, "not measured")
    return Bar("bytes off the table", strategy.name, BYTES_OFF, value, None, where)
