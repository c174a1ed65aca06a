"""What is measured of a server: how fast it takes, how fast it answers, and how much it keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import httpx
from pydantic import BaseModel, ConfigDict
from sqlalchemy import func, select

from roundoff.metrics import ROW
from roundoff.wire import Batch, RunStart
from roundoff_server.database import Database
from roundoff_server.models import LayerSample
from roundoff_server.services.intake import Intake
from roundoff_server.services.runs import start

from .batches import EVERY, Training
from .places import sizes

PER_BATCH = 20
REPEATS = 15


class Reads(BaseModel):
    """Milliseconds to the last byte over HTTP on this machine, medians."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    series: float
    model: float
    zoom: float
    module: float
    heatmap: float
    runs: float
    run: float


class Kept(BaseModel):
    """Bytes on disk of one row of a layer and step: all of it, and its share of roll-ups alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    bytes_per_row: float
    rolled_up_per_row: float


def fill(database: Database, run_id: str, training: Training, samples: int, first: int = 0) -> None:
    """Ingest in this process, as a route does, without HTTP."""
    if not first:
        with database.write() as session:
            start(session, run_id, beginning(run_id), time.time())
    intake = Intake(database, time.time, lambda _: None)
    for batch in training.batches(samples, PER_BATCH, first):
        intake.submit(run_id, batch, 1).result()
    intake.close()


def beginning(run_id: str) -> RunStart:
    """The start of a run."""
    return RunStart(project="benchmark", name=run_id, token=run_id, promise_s=3600)


def values_per_second(server: str, run_id: str, batches: Sequence[Batch]) -> list[float]:
    """Numbers of layers' rows that one client gets committed over HTTP per second, by batch.

    The bodies are made before, as gzip: what the client's own process does in its sender's thread.
    """
    from roundoff.delivery.batches import encode

    bodies = [encode(batch) for batch in batches]
    rates = []
    with httpx.Client(base_url=f"{server}/api/v1/", timeout=120, trust_env=False) as http:
        http.put(f"runs/{run_id}", content=beginning(run_id).model_dump_json()).raise_for_status()
        for batch, body in zip(batches, bodies, strict=True):
            began = time.perf_counter()
            answer = http.post(f"runs/{run_id}/batches", content=body, headers={"Content-Encoding": "gzip"})
            answer.raise_for_status()
            assert answer.json()["status"] == "accepted"
            rates.append(len(batch.samples or ()) * len(ROW) / (time.perf_counter() - began))
    return rates


def reads(server: str, run_id: str, rows: int, layers: int, samples: int) -> Reads:
    """The reads of a page, each `REPEATS` times after one that is not counted."""
    middle = f"blocks.{layers // 20}.3.weight"
    with httpx.Client(base_url=f"{server}/api/v1/", timeout=120, trust_env=False) as http:

        def call(path: str, **parameters: str | int) -> float:
            def once() -> None:
                http.get(path, params=parameters).raise_for_status()

            return _median_ms(once)

        series, heatmap = f"runs/{run_id}/series", f"runs/{run_id}/heatmap"
        last = samples * EVERY
        figure = "descent_efficiency"
        return Reads(
            rows=rows,
            series=call(series, metric=figure, layer=middle, max_points=2000),
            model=call(series, metric=figure, max_points=2000),
            zoom=call(series, metric=figure, layer=middle, from_step=last // 2, to_step=last // 2 + 5000),
            module=call(series, metric=figure, layer="blocks", max_points=400),
            heatmap=call(heatmap, metric=figure, max_steps=400, max_layers=layers),
            runs=call("runs", limit=50),
            run=call(f"runs/{run_id}"),
        )


def _median_ms(once: Callable[[], None]) -> float:
    once()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        once()
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def kept(database: Database) -> Kept:
    """Bytes on disk for each row of a layer, of a database that holds hardly anything else."""
    with database.read() as session:
        rows = session.scalar(select(func.count()).select_from(LayerSample)) or 1
    found = sizes(database)
    rolled_up = sum(found[name] for name in ("blocks", "strips", "block_marks", "resolutions"))
    return Kept(rows=rows, bytes_per_row=sum(found.values()) / rows, rolled_up_per_row=rolled_up / rows)
