"""The same values into other trackers, each run by a Python that has it: MLflow's server, and trackio.

    python others.py mlflow LAYERS STEPS       prints values per second

This file imports nothing of roundoff, so that it runs where only the other tracker is installed.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

COLUMNS = 24
AT_ONCE = 1000
"""Metrics in one call: the most that MLflow takes."""


def main() -> None:
    """Run one of them and print its figure."""
    name, layers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        speed = {"mlflow": mlflow_speed, "trackio": trackio_speed}[name](layers, steps)
    sys.stdout.write(f"{speed}\n")


def _values(layers: int) -> dict[str, float]:
    return {
        f"layer.{layer}/{column}": random.random() for layer in range(layers) for column in range(COLUMNS)
    }


def mlflow_speed(layers: int, steps: int) -> float:
    """`log_batch` over HTTP to a tracking server on SQLite."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", "sqlite:///mlflow.db"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/health")
        client = MlflowClient(tracking_uri=url)
        run = client.create_run(client.create_experiment("benchmark")).info.run_id
        rows = [
            [Metric(key, value, 0, step) for key, value in _values(layers).items()] for step in range(steps)
        ]
        began = time.perf_counter()
        for row in rows:
            for at in range(0, len(row), AT_ONCE):
                client.log_batch(run, metrics=row[at : at + AT_ONCE])
        return steps * layers * COLUMNS / (time.perf_counter() - began)
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _wait_for(url: str) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError(f"{url} does not answer")


def trackio_speed(layers: int, steps: int) -> float:
    """`log` until `finish` returns, into its own SQLite file, without a server between."""
    os.environ["TRACKIO_DIR"] = str(Path.cwd())
    import trackio  # type: ignore[import-not-found]

    rows = [_values(layers) for _ in range(steps)]
    trackio.init(project="benchmark", embed=False)
    began = time.perf_counter()
    for step, row in enumerate(rows):
        trackio.log(row, step=step)
    trackio.finish()
    return steps * layers * COLUMNS / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
