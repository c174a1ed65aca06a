"""Lost fraction and descent efficiency in TensorBoard, Weights & Biases, MLflow or any function as well."""

from __future__ import annotations

import atexit
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from roundoff.delivery import Sample
from roundoff.delivery.records import model_row
from roundoff.metrics import METRICS, ROW
from roundoff.telling import warn
from roundoff.wire import Layer

Write = Callable[[dict[str, float], int], object]
"""Takes figures by name and the optimizer step, counted from 0, that they were measured at."""

FIGURES = ("lost_fraction", "descent_efficiency")

WAITING = 64
"""Samples that may wait for a slow tracker; more are dropped."""

CLOSE_S = 10.0
"""How long the end of the program may wait for a tracker."""


def mirror_to(write: Write, *, figures: Iterable[str] = FIGURES, layers: bool = True) -> Mirror:
    """A sink that calls `write({name: figure, …}, step)` for every sample, in a thread of its own.

    Names are `roundoff/FIGURE` for the whole model and, with `layers`, `roundoff/FIGURE/LAYER`. `figures` are names of
    `roundoff.metrics.METRICS`. What is undefined at a step (nothing attempted) is left out.

    Raises ValueError for a figure that does not exist.
    """
    return Mirror(write, tuple(figures), layers)


def mirror_to_tensorboard(writer: Any, **options: Any) -> Mirror:
    """Into a `SummaryWriter` (of torch or tensorboardX). `options` as for `mirror_to`."""

    def write(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return mirror_to(write, **options)


def mirror_to_wandb(run: Any, *, rows: bool = False, **options: Any) -> Mirror:
    """Into a run of Weights & Biases, over an axis of its own, `roundoff/step`. `options` as for `mirror_to`.

    The figures join the row that the training is about to log, so that its own steps stay as they are. In a training
    that logs less often than roundoff samples only the newest figures before each of its rows are kept; `rows=True`
    makes each sample a row, for trainings that do not give `wandb.log` a step.
    """
    run.define_metric("roundoff/step", hidden=True)
    run.define_metric("roundoff/*", step_metric="roundoff/step")

    def write(figures: Mapping[str, float], step: int) -> None:
        run.log({**figures, "roundoff/step": step}, commit=rows)

    return mirror_to(write, **options)


def mirror_to_mlflow(client: Any, run_id: str, **options: Any) -> Mirror:
    """Into a run of MLflow, through an `MlflowClient`. `options` as for `mirror_to`.

    Characters of a layer's name that MLflow does not take become `_`.
    """
    from mlflow.entities import Metric

    def write(figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_mlflow_name(name), value, now, step) for name, value in figures.items()]
        for first in range(0, len(metrics), MLFLOW_BATCH):
            client.log_batch(run_id, metrics=metrics[first : first + MLFLOW_BATCH])

    return mirror_to(write, **options)


MLFLOW_BATCH = 1000
"""Metrics that MLflow takes in one request."""


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)


class Mirror:
    """A sink that derives figures from samples and hands them on. Made by the functions of this module.

    The training thread only puts a reference into a bounded queue: the numbers are read off the device, and the tracker
    is called, in a daemon thread. The first error of the tracker is a warning, and the mirror is off from then on.
    """

    def __init__(self, write: Write, figures: Sequence[str] = FIGURES, layers: bool = True) -> None:
        if unknown := [name for name in figures if name not in METRICS]:
            raise ValueError(f"no figure is called {unknown[0]!r}; there are {', '.join(METRICS)}")
        self.dropped = 0
        """Samples that a slow tracker left no room for, and those after its error."""
        self._write = write
        self._figures = {name: METRICS[name].figure for name in figures}
        self._with_layers = layers
        self._names: dict[int, str] = {}
        self._queue: queue.Queue[Sample | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._off = False

    def declare(self, layers: Sequence[Layer]) -> None:
        """New layers, before the first sample that holds them."""
        self._names.update({layer.index: layer.name for layer in layers})

    def sample(self, sample: Sample) -> None:
        """One sampled step."""
        if self._off:
            self.dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="roundoff-mirror", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        try:
            self._queue.put_nowait(replace(sample, headroom=None))
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                warn("the tracker that is mirrored to is slower than samples come; some are left out there")

    def close(self, timeout: float = CLOSE_S) -> None:
        """Hand on what waits, within `timeout` seconds, and take no more. The end of the program calls it as well."""
        self._off = True
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        atexit.unregister(self.close)
        deadline = time.monotonic() + timeout
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (sample := self._queue.get()) is not None:
            try:
                self._write(self._derived(sample), sample.step)
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises
                self._off = True
                warn(f"mirroring stopped, everything else goes on ({type(error).__name__}: {error})")
                return

    def _derived(self, sample: Sample) -> dict[str, float]:
        rows = sample.sums.tolist()
        places: list[tuple[str, Sequence[float]]] = [("", model_row(rows))]
        if self._with_layers:
            places += [(f"/{self._names[at]}", row) for at, row in zip(sample.layers, rows, strict=True)]
        found: dict[str, float] = {}
        for place, row in places:
            sums = SimpleNamespace(**dict(zip(ROW, row, strict=True)))
            for name, figure in self._figures.items():
                value = figure(sums)
                if value is not None:
                    found[f"roundoff/{name}{place}"] = value
        return found
