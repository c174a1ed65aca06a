"""The comparison of [Collage] at small scale: train every strategy, then make a page of what came out.

Without options it trains what is not finished yet, which takes hours. `--report docs/reproduction` trains nothing
and makes the page, from what is finished, or where no results are left again from the page's own data.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from reproduction.kernel import install
from reproduction.recipe import SEEDS, TINY, Case, Recipe, grid
from reproduction.results import Result, load, save
from reproduction.training import train
from roundoff.demo.text import load_text
from roundoff.optim import STRATEGIES

RESULTS = Path(__file__).parent / "results"


def main(
    strategies: Annotated[str, typer.Option(help="Some of them, with commas.")] = ",".join(STRATEGIES),
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = ",".join(map(str, SEEDS)),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of a run.")] = None,
    lr: Annotated[float | None, typer.Option(min=0.0, help="Peak of the learning rate.")] = None,
    tiny: Annotated[bool, typer.Option(help="A model and a text so small that it takes seconds.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 1,
    resume_from: Annotated[
        Path, typer.Option(help="Folder of results: what is finished there is not trained again.")
    ] = RESULTS,
    report: Annotated[
        Path | None, typer.Option(help="Folder for the page and its data; nothing is trained.")
    ] = None,
) -> None:
    """Compare the strategies of CollageAdamW as [Collage] does. Stop it at will: it goes on where it was."""
    recipe = TINY if tiny else Recipe()
    recipe = replace(recipe, steps=steps or recipe.steps, lr=recipe.lr if lr is None else lr)
    chosen = [name.strip() for name in strategies.split(",")]
    unknown = [name for name in chosen if name not in STRATEGIES]
    if unknown:
        raise typer.BadParameter(f"unknown strategy {unknown[0]!r}; choose from {', '.join(STRATEGIES)}")
    try:
        cases = list(grid(chosen, [int(seed) for seed in seeds.split(",")]))
        finished = load(resume_from, recipe)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if report is not None:
        from reproduction.page import write_report  # plotly, which training does without

        done = [finished[case] for case in cases if case in finished]
        typer.echo(write_report(report, recipe, done, len(cases)), nl=False)
        return
    todo = [case for case in cases if case not in finished]
    typer.echo(f"{len(cases)} runs of {recipe.steps} steps, {len(todo)} to train")
    start = time.monotonic()
    for number, result in enumerate(_results(todo, recipe, jobs), 1):
        save(result, resume_from)
        left = (time.monotonic() - start) / number * (len(todo) - number) / 60
        typer.echo(
            f"{result.case.name}: {result.loss:.4f} in {result.seconds:.0f} s, about {left:.0f} minutes left"
        )


def _results(todo: list[Case], recipe: Recipe, jobs: int) -> Iterator[Result]:
    """The results as they come, in this process or in some of its own."""
    work = [(case, recipe) for case in todo]
    if jobs == 1:
        yield from map(_one, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_one, work)


def _one(work: tuple[Case, Recipe]) -> Result:
    torch.set_num_threads(1)
    install()
    return train(*work, load_text())


if __name__ == "__main__":
    # An exit and not a kill, so that processes of its own end as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    typer.run(main)
