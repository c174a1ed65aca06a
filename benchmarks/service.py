"""What the server takes, answers and keeps, on SQLite and PostgreSQL, with a run of ten million rows.

    python benchmarks/service.py --folder big            # fills two databases there: minutes, and 6 GB
    python benchmarks/service.py --folder big --markdown # again: only measures; writes docs/service.md
    python benchmarks/service.py --folder small --rows 1000000
    python benchmarks/service.py --folder big --others other-venv/bin/python

Two runs of 1,000 layers, one with a tenth of the other's rows, lie among 200 small ones. `--others` names a Python
that has MLflow and trackio; they get the same kind of values.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from sqlalchemy import func, select

from marks import DOCS, table
from reports import add_writing, publish
from roundoff_server.database import Database, upgrade
from roundoff_server.models import ModelSample, Run
from serving.batches import Training
from serving.measures import PER_BATCH, Kept, Reads, fill, kept, reads, values_per_second
from serving.places import Place, postgresql_at, served, settle, sqlite_at
from timing.machine import Machine, this_machine

LAYERS = 1000
SMALL_RUNS = 200
BIG, TENTH = "big", "tenth"
BATCHES = 12
OTHERS = ("mlflow", "trackio")


class Measured(BaseModel):
    """One database: values per second into an empty run and into the big one, reads at two sizes, bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str
    empty: float
    full: float
    reads: list[Reads]
    kept: Kept


class Results(BaseModel):
    """All of it; values per second of others by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    taken_on: str
    machine: Machine
    measured: list[Measured]
    others: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill what is missing, measure, and write."""
    asked = _parser().parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    console, machine = Console(), this_machine(torch.device("cpu"))
    places = {"sqlite": sqlite_at, "postgresql": postgresql_at}
    measured = [_measure(places[name](asked.folder), asked.rows, console) for name in asked.databases]
    results = Results(
        taken_on=datetime.now(UTC).date().isoformat(),
        machine=machine,
        measured=measured,
        others={name: _other(asked.others, name) for name in OTHERS if asked.others},
    )
    publish(results, _tables(results), asked, DOCS / "service.md", "service", console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True, help="where the databases are kept")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--others", type=Path, help="a Python with MLflow and trackio")
    add_writing(parser, "service.md")
    return parser


def _measure(place: Place, rows: int, console: Console) -> Measured:
    database = Database(place.url)
    upgrade(database)
    parts = {TENTH: rows // LAYERS // 10, BIG: rows // LAYERS}
    _fill(database, place.name, parts, console)
    size = kept(database)
    with served(place) as (server, _):
        found = [reads(server, run, part * LAYERS, LAYERS, part) for run, part in parts.items()]
        empty, full = _ingest(database, server)
    database.dispose()
    return Measured(database=place.name, empty=empty, full=full, reads=found, kept=size)


def _fill(database: Database, name: str, parts: dict[str, int], console: Console) -> None:
    """Put in what an earlier call has not."""
    if all(_samples(database, run) >= part for run, part in parts.items()):
        return
    for run, part in parts.items():
        console.print(f"{name}: filling the run {run!r} to {part * LAYERS:,} rows")
        there = _samples(database, run)
        fill(database, run, Training(LAYERS), part - there, there)
    _small_runs(database)
    settle(database)


def _samples(database: Database, run: str) -> int:
    """How many samples a run has."""
    with database.read() as session:
        of_run = select(func.count()).select_from(ModelSample).join(Run, Run.run == ModelSample.run)
        return session.scalar(of_run.where(Run.id == run)) or 0


def _small_runs(database: Database) -> None:
    for number in range(SMALL_RUNS):
        with database.read() as session:
            known = session.scalar(select(Run.run).where(Run.id == f"small-{number}"))
        if known is None:
            fill(database, f"small-{number}", Training(3, number), 100)


def _ingest(database: Database, server: str) -> tuple[float, float]:
    """Medians into an empty run and into the big one, which keeps the rows: it grows by a fortieth."""
    there = _samples(database, BIG)
    into_big = list(Training(LAYERS, writer=f"w{there}").batches(BATCHES * PER_BATCH, PER_BATCH, there))
    into_big[0] = into_big[0].model_copy(update={"layers": Training(LAYERS).declared()})
    full = values_per_second(server, BIG, into_big)
    fresh = Training(LAYERS, seed=1)
    empty = values_per_second(server, f"empty-{there}", list(fresh.batches(BATCHES * PER_BATCH, PER_BATCH)))
    return median(empty[1:]), median(full[1:])


def _other(python: Path, name: str) -> float:
    script = Path(__file__).parent / "serving" / "others.py"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(script), name, "1000", "2"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return float(done.stdout.split()[-1])


def _tables(results: Results) -> str:
    return "\n\n".join(
        [
            f"Measured on {results.taken_on}: {results.machine.sentence}; client and server "
            "on the same machine. Medians.",
            _ingest_table(results),
            _reads_table(results),
            _kept_table(results),
        ]
    )


def _ingest_table(results: Results) -> str:
    slowest = results.others.get("mlflow")
    rows = []
    for one in results.measured:
        for what, speed in (("an empty run", one.empty), ("the big run", one.full)):
            ratio = f"{speed / slowest:,.0f} ×" if slowest else ""
            rows.append([f"roundoff, {one.database}, into {what}", f"{speed:,.0f}", ratio])
    rows += [
        [name, f"{speed:,.0f}", f"{speed / slowest:,.1f} ×" if slowest else ""]
        for name, speed in results.others.items()
    ]
    return table(["one client", "values/s", "of MLflow"], rows)


def _reads_table(results: Results) -> str:
    names = ("series", "model", "zoom", "module", "heatmap", "runs", "run")
    header = ["milliseconds", "rows", *names]
    rows = [
        [one.database, f"{read.rows:,}", *(f"{getattr(read, name):.1f}" for name in names)]
        for one in results.measured
        for read in one.reads
    ]
    growth = [
        [
            f"{one.database}, growth",
            "",
            *(f"{getattr(one.reads[-1], name) / getattr(one.reads[0], name):.2f} ×" for name in names),
        ]
        for one in results.measured
    ]
    return table(header, rows + growth)


def _kept_table(results: Results) -> str:
    rows = [
        [
            one.database,
            f"{one.kept.rows:,}",
            f"{one.kept.bytes_per_row:.0f}",
            f"{one.kept.rolled_up_per_row:.1f}",
            f"{one.kept.rolled_up_per_row * one.kept.rows / 1e6:,.0f} MB",
        ]
        for one in results.measured
    ]
    return table(["kept", "rows", "bytes per row", "of them roll-ups", "roll-ups of the run"], rows)


if __name__ == "__main__":
    main()
