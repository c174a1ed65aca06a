"""The part of a page of the docs that a benchmark writes, between two marks of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name: begin -->` and its end. Raises ValueError without each of them once."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = page.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page} must have the marks {begin} and {end} once each")
    before, rest = whole.split(begin)
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are numbers."""
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
