"""How numbers, times and words are written on pages."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from roundoff.metrics import percent
from roundoff.wire import RunSummary

ABSENT = "–"

HEALTH_WORDS: dict[str | None, str] = {
    "stalling": "Stalling",
    "healthy": "Healthy",
    "idle": "Idle",
    "broken": "Broken",
    None: "Waiting",
}


def number(value: float | None, digits: int = 4) -> str:
    """`2.031`, `3.8e-05`, `NaN`; a dash where there is none."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    return f"{value:#.{digits}g}".rstrip(".")


def fixed(value: float | None, digits: int = 2) -> str:
    """`0.38`: figures of one kind that stand in a column."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """A learning rate: `3.8e-05`."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.1e}"


def share(value: float | None) -> str:
    """`71 %`; a dash where there is none."""
    if value is None:
        return ABSENT
    return percent(value) if math.isfinite(value) else number(value)


def count(value: int | None) -> str:
    """`12,345`."""
    return ABSENT if value is None else f"{value:,}"


def age(moment: datetime, now: datetime | None = None) -> str:
    """`2 s ago`, `5 min ago`, `3 h ago`, `4 d ago`."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = max(0, int(((now or datetime.now(UTC)) - aware).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def instant(moment: datetime) -> str:
    """ISO 8601 in UTC, for `<time datetime>`."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="seconds")


def health_word(health: str | None) -> str:
    """The verdict as one word."""
    return HEALTH_WORDS.get(health, str(health).capitalize())


def trouble(runs: list[RunSummary]) -> tuple[str, str, str]:
    """The answer to "which of my runs are in trouble?": tone, coloured start, rest of the sentence."""
    stalling = sum(run.health == "stalling" for run in runs)
    broken = sum(run.health == "broken" for run in runs)
    total = len(runs)
    of = f"of {total} run{'s' if total != 1 else ''}"
    if stalling:
        verb = "loses its" if stalling == 1 else "lose their"
        rest = f"{stalling} {of} {verb} updates to rounding."
        return (
            "stalling",
            "Stalling.",
            rest + (f" {broken} hold{'s' if broken == 1 else ''} non-finite values." if broken else ""),
        )
    if broken:
        return "broken", "Broken.", f"{broken} {of} hold{'s' if broken == 1 else ''} non-finite values."
    if total == 1:
        return "healthy", "", "The run is not in trouble."
    return "healthy", "", f"None of {total} runs is in trouble."
