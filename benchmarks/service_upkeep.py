"""What it takes to export, thin and delete a run of ten million rows: memory, time, disk, and what others notice.

    python benchmarks/service.py --folder big           # fills the databases
    python benchmarks/service_upkeep.py --folder big    # works on copies of them; --markdown writes docs/service.md

Memory is the most that the process had beyond what it had before, sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import psycopg
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from sqlalchemy import func, select

from marks import DOCS, table
from reports import add_options, publish
from roundoff_server.database import Database, upgrade
from roundoff_server.models import LayerSample, Removal, Run
from roundoff_server.services.removal import remove, sweep
from serving.places import Place, postgresql_at, served, sizes, sqlite_at
from timing.machine import Machine, this_machine

BIG = "big"
MEMORY_EXPORT, MEMORY_DELETE, THINNED = 300e6, 500e6, 400e6
SLOWEST_READ_S = 1.0


class Upkeep(BaseModel):
    """One database: bytes, seconds and rows of the three."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str
    rows: int
    export_rows: int
    export_memory: float
    export_s: float
    export_bytes: int
    thin_s: float
    thin_memory: float
    thinned_bytes: float
    delete_s: float
    delete_memory: float
    reads: int
    read_p99_s: float
    read_errors: int
    before_vacuum: int
    after_vacuum: int

    @property
    def thinned_at_ten_million(self) -> float:
        """Bytes that are left for ten million rows: they grow with the rows."""
        return self.thinned_bytes * 1e7 / self.rows

    @property
    def passed(self) -> bool:
        """Whether every limit is kept to."""
        return (
            self.export_rows == self.rows
            and self.export_memory < MEMORY_EXPORT
            and self.thinned_at_ten_million < THINNED
            and self.delete_memory < MEMORY_DELETE
            and not self.read_errors
            and self.read_p99_s < SLOWEST_READ_S
            and self.after_vacuum < self.before_vacuum
        )


class Report(BaseModel):
    """All of it, and where it was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: datetime
    machine: Machine
    measured: tuple[Upkeep, ...]

    @property
    def passed(self) -> bool:
        """Whether every limit is kept to."""
        return all(one.passed for one in self.measured)


class Memory:
    """The most that a process has had beyond what it had at first."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._most = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            try:
                self._most = max(self._most, self._process.memory_info().rss)
            except psutil.NoSuchProcess:
                return

    def grown(self) -> float:
        """Bytes, up to now."""
        self._over.set()
        self._thread.join()
        return float(self._most - self._before)


@contextmanager
def copy_of(place: Place, folder: Path) -> Iterator[Place]:
    """A database like this one, which may be spoilt."""
    if place.url.startswith("sqlite"):
        target = folder / "copy.db"
        shutil.copyfile(place.url.removeprefix("sqlite:///"), target)
        yield Place(place.name, f"sqlite:///{target}")
        target.unlink()
        return
    server = place.url.replace("/roundoff?", "/postgres?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS spoilt WITH (FORCE)")
        connection.execute("CREATE DATABASE spoilt TEMPLATE roundoff")
    yield Place(place.name, place.url.replace("/roundoff?", "/spoilt?"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP DATABASE spoilt WITH (FORCE)")


def export(place: Place, folder: Path) -> tuple[int, float, float, int]:
    """Parquet of all layer rows over HTTP: rows in the file, the server's memory, seconds, bytes."""
    target = folder / "big.parquet"
    with served(place) as (url, pid), httpx.Client(timeout=600, trust_env=False) as http:
        http.get(f"{url}/api/v1/runs/{BIG}").raise_for_status()
        memory, began = Memory(pid), time.perf_counter()
        address = f"{url}/api/v1/runs/{BIG}/export"
        with http.stream("GET", address, params={"format": "parquet"}) as answer, target.open("wb") as file:
            answer.raise_for_status()
            for part in answer.iter_bytes():
                file.write(part)
        took, grown = time.perf_counter() - began, memory.grown()
    rows = sum(part.num_rows for part in pq.ParquetFile(target).iter_batches(columns=["step"]))
    first = pq.ParquetFile(target).read_row_group(0).to_pandas()
    assert {"layer", "step", "sum_uu"} <= set(first.columns)
    size = target.stat().st_size
    target.unlink()
    return rows, grown, took, size


def command(*words: str) -> tuple[float, float]:
    """Run `roundoff …`; seconds and memory."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "roundoff", *words], stdout=subprocess.DEVNULL)
    time.sleep(1.0)  # it has loaded what it needs
    memory = Memory(process.pid)
    if process.wait(1800):
        raise RuntimeError(f"roundoff {' '.join(words)} failed")
    return time.perf_counter() - began, memory.grown()


def thin(place: Place) -> tuple[float, float, float]:
    """`db thin` where this run is alone: seconds, memory, and the bytes of the whole database, vacuumed."""
    _leave_alone(place)
    took, memory = command("db", "thin", "--days", "0", "--database", place.url)
    vacuum(place)
    database = Database(place.url)
    left = sum(sizes(database).values())
    database.dispose()
    return took, memory, float(left)


def _leave_alone(place: Place) -> None:
    """Delete all other runs."""
    database = Database(place.url)
    with database.write() as session:
        for run_id in session.scalars(select(Run.id).where(Run.id != BIG)).all():
            remove(session, run_id)
    sweep(database)
    database.dispose()


def vacuum(place: Place) -> None:
    """Give space back as a user does; PostgreSQL's own tables only shrink by a full one."""
    if place.url.startswith("sqlite"):
        command("db", "vacuum", "--database", place.url)
        return
    database = Database(place.url)
    database.maintain("VACUUM FULL")
    database.dispose()


def delete(place: Place) -> tuple[float, float, list[float], int]:
    """Delete the run on a server while others read: seconds, memory, seconds of each read, reads that failed."""
    took: list[float] = []
    failed = 0
    with served(place) as (url, pid), httpx.Client(timeout=60, trust_env=False) as http:
        http.get(f"{url}/api/v1/runs/{BIG}").raise_for_status()
        memory, began = Memory(pid), time.perf_counter()
        http.delete(f"{url}/api/v1/runs/{BIG}").raise_for_status()
        database = Database(place.url)
        while _is_going(database):
            for path in ("runs", "runs/small-7/series?metric=descent_efficiency", "runs/small-9"):
                asked = time.perf_counter()
                failed += not http.get(f"{url}/api/v1/{path}").is_success
                took.append(time.perf_counter() - asked)
            time.sleep(0.05)
        seconds, grown = time.perf_counter() - began, memory.grown()
        database.dispose()
    return seconds, grown, took, failed


def _is_going(database: Database) -> bool:
    with database.read() as session:
        return session.scalar(select(Removal.run)) is not None


def measure(place: Place, folder: Path, say: Callable[[str], None]) -> Upkeep:
    """All three, on copies."""
    database = Database(place.url)
    upgrade(database)
    with database.read() as session:
        of_run = select(func.count()).select_from(LayerSample).join(Run, Run.run == LayerSample.run)
        rows = session.scalar(of_run.where(Run.id == BIG)) or 0
    database.dispose()
    say(f"{place.name}: exporting {rows:,} rows")
    export_rows, export_memory, export_s, export_bytes = export(place, folder)
    with copy_of(place, folder) as copy:
        say(f"{place.name}: thinning")
        thin_s, thin_memory, left = thin(copy)
    with copy_of(place, folder) as copy:
        say(f"{place.name}: deleting")
        delete_s, delete_memory, reads, failed = delete(copy)
        spoilt = Database(copy.url)
        before = spoilt.size()
        spoilt.dispose()
        vacuum(copy)
        after = spoilt.size()
        spoilt.dispose()
    return Upkeep(
        database=place.name,
        rows=rows,
        export_rows=export_rows,
        export_memory=export_memory,
        export_s=export_s,
        export_bytes=export_bytes,
        thin_s=thin_s,
        thin_memory=thin_memory,
        thinned_bytes=left,
        delete_s=delete_s,
        delete_memory=delete_memory,
        reads=len(reads),
        read_p99_s=statistics.quantiles(reads, n=100)[98] if len(reads) > 1 else 0.0,
        read_errors=failed,
        before_vacuum=before,
        after_vacuum=after,
    )


def markdown(report: Report) -> str:
    """The table for the page."""
    heads = ["", *(one.database for one in report.measured)]
    lines: list[tuple[str, Callable[[Upkeep], str]]] = [
        ("rows of the run", lambda one: f"{one.rows:,}"),
        ("Parquet: rows in the file", lambda one: f"{one.export_rows:,}"),
        ("Parquet: file, time", lambda one: f"{one.export_bytes / 1e6:,.0f} MB, {one.export_s:,.0f} s"),
        (
            "Parquet: the server's memory grew by (bar 300 MB)",
            lambda one: f"{one.export_memory / 1e6:,.0f} MB",
        ),
        ("`db thin`: time, memory", lambda one: f"{one.thin_s:,.0f} s, {one.thin_memory / 1e6:,.0f} MB"),
        (
            "database with this run alone, thinned",
            lambda one: f"{one.thinned_bytes / 1e6:,.0f} MB",
        ),
        (
            "the same for 10,000,000 rows (bar 400 MB)",
            lambda one: f"{one.thinned_at_ten_million / 1e6:,.0f} MB",
        ),
        ("delete: until all rows are gone", lambda one: f"{one.delete_s:,.0f} s"),
        (
            "delete: the server's memory grew by (bar 500 MB)",
            lambda one: f"{one.delete_memory / 1e6:,.0f} MB",
        ),
        (
            "delete: reads of others meanwhile, 99 %, failed",
            lambda one: f"{one.reads:,}, {1e3 * one.read_p99_s:,.0f} ms, {one.read_errors}",
        ),
        (
            "vacuum: database before and after",
            lambda one: f"{one.before_vacuum / 1e6:,.0f} MB, {one.after_vacuum / 1e6:,.0f} MB",
        ),
    ]
    rows = [[name, *(shown(one) for one in report.measured)] for name, shown in lines]
    return f"Measured on {report.finished:%Y-%m-%d}: {report.machine.sentence}.\n\n{table(heads, rows)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read, show, write; 1 where a limit is broken and `--check` was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where service.py has filled databases")
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    add_options(parser, "service.md", read="measure nothing", check="a limit is broken")
    asked = parser.parse_args(arguments)
    console = Console()
    if asked.read:
        report = Report.model_validate_json(asked.read.read_text(encoding="utf-8"))
    else:
        places = {"sqlite": sqlite_at, "postgresql": postgresql_at}
        machine = this_machine(torch.device("cpu"))
        measured = tuple(
            measure(places[name](asked.folder), asked.folder, console.print) for name in asked.databases
        )
        report = Report(finished=datetime.now(UTC), machine=machine, measured=measured)
    publish(report, markdown(report), asked, DOCS / "service.md", "upkeep", console)
    return int(asked.check and not report.passed)


if __name__ == "__main__":
    sys.exit(main())
