"""The terminal: tables for people on standard output, one JSON document for programs, errors beside them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from roundoff.wire import Answer

output = Console()
errors = Console(stderr=True)

HEALTH_STYLE = {"stalling": "bold red", "broken": "bold red", "idle": "dim", "healthy": "green", None: "dim"}


def print_json(answers: Answer | list[Answer] | dict[str, object]) -> None:
    """One JSON document on standard output, non-finite numbers as in the REST answers."""
    if isinstance(answers, dict):
        document: object = answers
    elif isinstance(answers, Answer):
        document = json.loads(answers.model_dump_json())
    else:
        document = [json.loads(BaseModel.model_dump_json(answer)) for answer in answers]
    output.file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the house style: no frame, a line under the heads."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return made


def health(state: str | None) -> Text:
    """A verdict as one coloured word."""
    return Text(state or "no verdict", style=HEALTH_STYLE.get(state, ""))


def number(value: float | None, decimals: int = 3) -> str:
    """A number for reading, in exponent form where its size asks for it; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.{decimals}f}" if value == 0 or 0.01 <= abs(value) < 10_000 else f"{value:.{decimals}g}"


def age(moment: datetime | None) -> str:
    """How long ago: `12 s`, `5 min`, `3 h`, `2 d`."""
    if moment is None:
        return "–"
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
