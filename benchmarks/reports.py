"""What a benchmark does with its report: write it, show it, put it into a page of the docs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from marks import write_between


def add_options(parser: ArgumentParser, page: str, *, read: str, check: str) -> None:
    """`--read`, `--json`, `--markdown` and `--check`; `read` says what reading spares, `check` what else exits 1."""
    parser.add_argument("--read", type=Path, metavar="FILE", help=f"{read}, take a report written before")
    add_writing(parser, page)
    parser.add_argument("--check", action="store_true", help=f"exit 1 if {check}")


def add_writing(parser: ArgumentParser, page: str) -> None:
    """`--json` and `--markdown`, as `publish` takes them."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--markdown", action="store_true", help=f"put the tables into docs/{page}")


def publish(
    report: BaseModel, shown: str, options: Namespace, page: Path, mark: str, console: Console
) -> None:
    """Do what the options ask for: `shown` is the report in Markdown, put between the marks of that name in `page`."""
    if options.json:
        options.json.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    console.print(shown, markup=False, highlight=False, soft_wrap=True)
    if options.markdown:
        write_between(page, mark, shown)
