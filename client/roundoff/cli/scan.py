"""`roundoff scan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from roundoff.metrics import percent

from .source import Json
from .terminal import errors, output, print_json, table

if TYPE_CHECKING:
    from roundoff.scan import Scan, TensorFacts


def scan(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="A .safetensors or torch.save file, an index of shards, or a folder."
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[B]", help="Another checkpoint of the same model, to compare with."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every tensor, not the remarkable ones.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with every tensor to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for lost updates in checkpoints: weights stuck at 1.0, words that no step changed, state that was rounded.

    Nothing in the file is executed, and it is read in small pieces, so it may be larger than memory.
    """
    from roundoff.scan import scan as scan_files
    from roundoff.scan.page import page

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        found = scan_files(
            checkpoint, other, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if html is not None:
        html.write_text(page(found), encoding="utf-8")
    if as_json:
        print_json(found.as_dict())
        return
    _print(found, everything=everything)
    if html is not None:
        output.print(f"page: {html}", style="dim")


def _print(found: Scan, *, everything: bool) -> None:
    remarkable = {name for finding in found.findings for name in finding.tensors}
    rows = [facts for facts in found.tensors if everything or facts.name in remarkable]
    if rows:
        output.print(_table(rows, compared=found.other is not None))
        output.print()
    for finding in found.findings:
        output.print(Text(finding.where, style="bold"), Text(finding.says), sep="\n  ", soft_wrap=True)
    for name, why in found.skipped.items():
        output.print(Text(f"not read: {name}: {why}", style="dim"))
    for names, where in ((found.only_here, found.path), (found.only_there, found.other)):
        if names:
            output.print(Text(f"only in {where}: {len(names)} tensors, {names[0]} first", style="dim"))
    summary = f"{len(found.tensors):,} tensors, {len(remarkable):,} remarkable"
    if found.same_share is not None:
        summary += f"; {percent(found.same_share)} of all 16-bit words are the same in both"
    output.print(Text(summary))


def _table(rows: list[TensorFacts], *, compared: bool) -> object:
    right = ("= 1", "= 0", "bf16 values", *(("same",) if compared else ()))
    made = table("tensor", "dtype", "shape", *right, right=right)
    for facts in rows:
        cells = [
            _share(facts.ones, facts, shown=facts.is_float),
            _share(facts.zeros, facts, shown=facts.is_float),
            _share(facts.narrow, facts, shown=facts.dtype == "float32"),
        ]
        if compared:
            cells.append(
                Text(facts.other or "–") if facts.same is None else _share(facts.same, facts, shown=True)
            )
        shape = "×".join(map(str, facts.shape)) or "scalar"
        made.add_row(Text(facts.name), facts.dtype, shape, *cells)
    return made


def _share(count: int, facts: TensorFacts, *, shown: bool) -> Text:
    if not shown or not facts.numel:
        return Text("–")
    return Text(percent(count / facts.numel), style="bold red" if count >= facts.numel / 2 else "")
