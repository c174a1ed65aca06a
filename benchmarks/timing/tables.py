"""A report as tables: in the terminal, and in Markdown between two marks of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .bars import Bar
from .results import Case, Figure, Report, Statistics

BEGIN, END = "<!-- optimizer_step: begin -->", "<!-- optimizer_step: end -->"
NOTHING = "–"

WORDS: dict[Statistics, str] = {"off": "no statistics", "sums": "sums", "histograms": "sums and histograms"}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text; the first `names` columns are not figures."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1


def steps(report: Report) -> Grid:
    """Bytes per parameter and ratio to the baseline: a row per contender, a column per workload."""
    columns = _workloads(report.cases)
    rows = []
    for name, cases in _by_contender(report.cases).items():
        figures = [_ratio(cases.get(column)) for column in columns]
        if any(figure != NOTHING for figure in figures):
            mark = " †" if any(case.writes_gradients for case in cases.values()) else ""
            rows.append([name + mark, _bytes(cases.values()), *figures])
    return Grid(
        f"Time of a step, in steps of {report.baseline}", ["optimizer", "bytes/param", *columns], rows
    )


def statistics(report: Report) -> Grid:
    """What measuring adds to the same step, in per cent."""
    columns = _workloads(report.cases)
    rows = []
    choices: tuple[Statistics, ...] = ("sums", "histograms")
    for name, cases in _by_contender(report.cases).items():
        for choice in choices:
            figures = [_added(cases.get(column), choice) for column in columns]
            if any(figure != NOTHING for figure in figures):
                rows.append([name, WORDS[choice], *figures])
    return Grid("What the statistics add to a step", ["optimizer", "statistics", *columns], rows, names=2)


def judgement(bars: Iterable[Bar]) -> Grid:
    """Pass or fail, bar by bar; strategies that no bar binds are in brackets."""
    rows = []
    for bar in sorted(bars, key=lambda bar: bar.what):
        verdict = "pass" if bar.passed else "fail"
        value = NOTHING if bar.value is None else f"{bar.value:.3f}"
        spread = NOTHING if bar.spread is None else f"{bar.spread.low:.3f} to {bar.spread.high:.3f}"
        shown = verdict if bar.binding else f"({verdict})"
        rows.append([bar.what, bar.strategy, bar.where, shown, value, spread, f"{bar.limit:g}"])
    return Grid(
        "Bars", ["figure", "strategy", "worst at", "verdict", "median", "quartiles", "at most"], rows, names=4
    )


def remarks(report: Report) -> list[str]:
    """What the tables leave out: who was absent, what failed, what the cases were skipped for."""
    said: dict[str, list[str]] = {}
    for case in report.cases:
        if case.reason is not None:
            where = said.setdefault(f"{case.contender}: {case.status}, {case.reason}", [])
            where.append(case.workload)
    lines = [f"{words} ({', '.join(where)})" for words, where in said.items()]
    if any(case.writes_gradients for case in report.cases):
        lines.append("† its step writes to the gradients")
    return lines


def markdown(report: Report) -> str:
    """Tables and remarks as they stand in a page; the wording is the same for the same report."""
    rounds = sorted({case.rounds for case in report.cases if case.rounds})
    load = report.machine.load_before
    lines = [
        f"Measured on {report.finished:%Y-%m-%d}: {report.machine.sentence}; medians of "
        f"{' or '.join(map(str, rounds)) or 'no'} rounds ± half the distance of the quartiles"
        + (f"; load before it {load:.1f}." if load is not None else "."),
        "",
    ]
    for grid in (steps(report), statistics(report)):
        if grid.rows:
            lines += [f"**{grid.title}**", "", *_markdown_rows(grid), ""]
    packages = sorted({case.package for case in report.cases if case.package and case.status == "measured"})
    if packages:
        lines += [f"Third parties: {', '.join(packages)}.", ""]
    lines += [f"- {line}" for line in remarks(report)]
    return "\n".join(lines).strip()


def around_marks(page: Path) -> tuple[str, str]:
    """What stands before and after the two marks. Raises ValueError if the page does not have each once."""
    whole = page.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        raise ValueError(f"{page} must have the marks {BEGIN} and {END} once each")
    before, rest = whole.split(BEGIN)
    return before, rest.split(END)[1]


def write_between_marks(page: Path, text: str) -> None:
    """Replace what stands between the two marks; raises as `around_marks` does."""
    before, after = around_marks(page)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def show(console: Console, grid: Grid) -> None:
    """Print a table."""
    table = Table(title=grid.title, title_justify="left")
    for index, name in enumerate(grid.header):
        table.add_column(name, justify="left" if index < grid.names else "right", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row)
    console.print(table)


def _workloads(cases: Iterable[Case]) -> list[str]:
    sizes = {case.workload: (case.tensors, case.numel) for case in cases if case.status == "measured"}
    return sorted(sizes, key=sizes.__getitem__)


def _by_contender(cases: Iterable[Case]) -> dict[str, dict[str, Case]]:
    found: dict[str, dict[str, Case]] = {}
    for case in cases:
        found.setdefault(case.contender, {})[case.workload] = case
    return found


def _ratio(case: Case | None) -> str:
    timing = case and case.timing("off")
    return _with_spread(timing.ratio, "{:.2f}") if timing else NOTHING


def _added(case: Case | None, choice: Statistics) -> str:
    timing = case and case.timing(choice)
    if not timing or timing.added is None:
        return NOTHING
    added = timing.added
    return (
        _with_spread(Figure(middle=100 * added.middle, low=100 * added.low, high=100 * added.high), "{:.0f}")
        + " %"
    )


def _with_spread(figure: Figure, form: str) -> str:
    return f"{form.format(figure.middle)} ± {form.format((figure.high - figure.low) / 2)}"


def _bytes(cases: Iterable[Case]) -> str:
    """Of the largest workload: what is kept once per tensor is nothing there."""
    weighed = [
        (case.numel, case.bytes_per_parameter) for case in cases if case.bytes_per_parameter is not None
    ]
    return f"{max(weighed)[1]:.2f}" if weighed else NOTHING


def _markdown_rows(grid: Grid) -> list[str]:
    rule = ["---" if index < grid.names else "---:" for index in range(len(grid.header))]
    return [f"| {' | '.join(row)} |" for row in (grid.header, rule, *grid.rows)]
