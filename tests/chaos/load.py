"""A client in a process of its own that counts how long its requests took and what went wrong.

    python load.py write URL RUN AT SECONDS PACE    # batches, one after the other, one per PACE seconds at most
    python load.py read URL RUN AT SECONDS PACE     # pages of runs, series, heatmaps

Begins at the time AT (seconds since 1970), somewhere within the first PACE, as no two trainings keep step. Prints one
JSON document when it is done.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from itertools import count, cycle

import httpx

from roundoff.metrics import COUNTS, ROW
from roundoff.wire import Batch, Column, Layer, LayerSamples, ModelSamples, RunStart, Scalars

LAYERS = 40
STEPS = 5
"""Layers and steps in one batch."""

COUNTED = {"numel": 1000, "attempted": 1000, "lost": 10, "expected_roundings": 500}
SUMMED = {"sum_uu": 4.0, "sum_ua": 3.9}


def loss(step: int) -> float:
    """What every run logs at a step."""
    return 1.0 / (1 + step)


def _sums(rows: int) -> dict[str, Column]:
    return {
        name: Column.ints([COUNTED.get(name, 0)] * rows)
        if name in COUNTS
        else Column.floats([SUMMED.get(name, 0.0)] * rows)
        for name in ROW
    }


def batch(seq: int, writer: str = "w") -> bytes:
    """The `seq`th batch of a run, as it travels: `STEPS` steps of the model, its layers and its loss."""
    steps = list(range(seq * STEPS, (seq + 1) * STEPS))
    layers = [
        Layer(index=i, name=f"layer.{i}", shape=[1000], numel=1000, dtype="bfloat16") for i in range(LAYERS)
    ]
    body = Batch(
        writer=writer,
        seq=seq,
        attempt=1,
        layers=layers if seq == 0 else [],
        model=ModelSamples(step=Column.ints(steps), sums=_sums(STEPS)),
        samples=LayerSamples(
            step=Column.ints(step for step in steps for _ in range(LAYERS)),
            layer=Column.ints(list(range(LAYERS)) * STEPS),
            sums=_sums(STEPS * LAYERS),
        ),
        scalars=Scalars(
            step=Column.ints(steps),
            names=["loss"],
            name=Column.ints([0] * STEPS),
            value=Column.floats(loss(step) for step in steps),
        ),
    )
    return gzip.compress(body.model_dump_json(exclude_none=True).encode(), 1)


def start(http: httpx.Client, run_id: str) -> None:
    """Begin a run."""
    body = RunStart(project="load", name=run_id, token=run_id).model_dump_json()
    http.put(f"runs/{run_id}", content=body).raise_for_status()


def send(http: httpx.Client, run_id: str, seq: int) -> httpx.Response:
    """Send one batch of a run."""
    headers = {"Content-Encoding": "gzip"}
    return http.post(f"runs/{run_id}/batches", content=batch(seq), headers=headers)


def _writes(http: httpx.Client, run_id: str) -> Iterator[httpx.Response]:
    start(http, run_id)
    for seq in count():
        body, headers = batch(seq), {"Content-Encoding": "gzip"}
        yield http.post(f"runs/{run_id}/batches", content=body, headers=headers)


def _reads(http: httpx.Client, run_id: str) -> Iterator[httpx.Response]:
    for path in cycle(
        (
            "runs",
            f"runs/{run_id}",
            f"runs/{run_id}/series?metric=descent_efficiency",
            f"runs/{run_id}/series?metric=scalar:loss",
            f"runs/{run_id}/series?metric=lost_fraction&layer=layer.0",
            f"runs/{run_id}/heatmap",
            "alerts",
        )
    ):
        yield http.get(path)


def main() -> None:
    kind, url, run_id, begin, seconds, pace = sys.argv[1:]
    phase = random.Random(f"{kind} {run_id} {os.getpid()}").uniform(0, float(pace))
    took: list[float] = []
    faults: list[str] = []
    with httpx.Client(base_url=f"{url}/api/v1/", timeout=30, trust_env=False) as http:
        requests = (_writes if kind == "write" else _reads)(http, run_id)
        time.sleep(max(0.0, float(begin) + phase - time.time()))
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                answer = next(requests)
            except httpx.HTTPError as error:
                faults.append(repr(error))
                break
            took.append(answer.elapsed.total_seconds())
            if not answer.is_success:
                faults.append(f"{answer.status_code} {answer.text}")
            time.sleep(max(0.0, began + float(pace) - time.monotonic()))
    print(json.dumps({"took": took, "faults": faults[:5]}))  # noqa: T201


if __name__ == "__main__":
    main()
