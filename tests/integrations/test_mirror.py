"""The same figures in real trackers: TensorBoard's files, a database of MLflow, an offline run of W&B."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reading import Kept
from torch import nn

import roundoff
from roundoff.delivery import Sample, Tee
from roundoff.integrations.mirror import (
    WAITING,
    Mirror,
    mirror_to,
    mirror_to_mlflow,
    mirror_to_tensorboard,
    mirror_to_wandb,
)
from roundoff.metrics import ROW, descent_efficiency, lost_fraction
from roundoff.watch import Watch

Figures = dict[int, dict[str, float]]


def trained(*sinks: Any, steps: int = 9) -> Watch:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with roundoff.watch(model, optimizer, every=4, sink=Tee(*sinks)) as watching:
        for _ in range(steps):
            optimizer.zero_grad()
            rows = torch.randn(8, 16).bfloat16()
            (model(rows) - rows).square().mean().backward()
            optimizer.step()
    return watching


def expected(kept: Kept) -> Figures:
    """The figures of each kept sample, derived here."""
    found: Figures = {}
    for sample in kept.samples:
        rows = torch.tensor(sample.sums.tolist(), dtype=torch.float64)
        named = {
            "": rows.sum(0),
            **{f"/{layer.name}": row for layer, row in zip(kept.layers, rows, strict=True)},
        }
        found[sample.step] = {}
        for place, row in named.items():
            sums = SimpleNamespace(**dict(zip(ROW, row.tolist(), strict=True)))
            for figure in (lost_fraction, descent_efficiency):
                if (value := figure(sums)) is not None:
                    found[sample.step][f"roundoff/{figure.__name__}{place}"] = value
    assert list(found) == [0, 4, 8]
    assert len(found[4]) == 2 * 7
    return found


def assert_close(found: Figures, wanted: Figures, rel: float = 1e-12) -> None:
    assert found.keys() == wanted.keys()
    for step, figures in wanted.items():
        assert found[step] == pytest.approx(figures, rel=rel)


def test_a_function_is_given_every_figure_of_every_sample() -> None:
    kept, written = Kept(), Figures()
    mirror = mirror_to(lambda figures, step: written.__setitem__(step, figures))
    trained(kept, mirror)
    mirror.close()
    assert_close(written, expected(kept))
    assert mirror.dropped == 0


def test_figures_can_be_chosen_and_layers_left_out() -> None:
    written = Figures()
    mirror = mirror_to(
        lambda figures, step: written.__setitem__(step, figures), figures=["edq"], layers=False
    )
    trained(mirror)
    mirror.close()
    assert [list(figures) for figures in written.values()] == [["roundoff/edq"]] * 3
    with pytest.raises(ValueError, match="no figure is called 'lost'"):
        mirror_to(print, figures=["lost"])


def test_tensorboard_reads_them_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    kept = Kept()
    with SummaryWriter(tmp_path) as writer:
        mirror = mirror_to_tensorboard(writer)
        trained(kept, mirror)
        mirror.close()
    read = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    found: Figures = {}
    for name in read.Tags()["scalars"]:
        for point in read.Scalars(name):
            found.setdefault(point.step, {})[name] = point.value
    assert_close(found, expected(kept), rel=1e-6)  # its files hold float32


def test_mlflow_reads_them_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run_id = client.create_run(client.create_experiment("mirrored")).info.run_id
    kept = Kept()
    mirror = mirror_to_mlflow(client, run_id)
    trained(kept, mirror)
    mirror.close()
    wanted = expected(kept)
    found: Figures = {}
    for name in client.get_run(run_id).data.metrics:
        for point in client.get_metric_history(run_id, name):
            found.setdefault(point.step, {})[name] = point.value
    assert_close(found, wanted)

    odd = mirror_to_mlflow(client, run_id)
    odd.declare([kept.layers[0].model_copy(update={"name": "weights@[0], größe"})])
    odd.sample(Sample(1, [0], kept.samples[0].sums[:1], None, []))  # type: ignore[index]
    odd.close()
    assert "mirroring stopped" not in caplog.text
    assert "roundoff/lost_fraction/weights__0__ gr__e" in client.get_run(run_id).data.metrics


def records_of(folder: Path) -> Iterator[Any]:
    """The records in the file of an offline run: a log in blocks of 32 KiB, as LevelDB writes it."""
    from wandb.proto import wandb_internal_pb2

    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, record = path.read_bytes(), 7, b""
    while len(data) - at >= 7:
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if len(data) - at - 7 < size:
            return  # it is being written
        record = (b"" if kind in (1, 2) else record) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(record)


def rows_of(folder: Path) -> list[dict[str, float]]:
    """The rows of an offline run that has finished; its service goes on writing for a while after that."""
    until = time.monotonic() + 30
    while True:
        records = list(records_of(folder))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            break
        assert time.monotonic() < until, "the run was not written"
        time.sleep(0.05)
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def wandb_run(folder: Path) -> Any:
    import wandb

    return wandb.init(project="mirrored", dir=folder, mode="offline", settings=wandb.Settings(silent=True))


def test_wandb_has_them_over_an_axis_of_their_own_and_its_users_steps_stay(tmp_path: Path) -> None:
    kept = Kept()
    with wandb_run(tmp_path) as run:
        mirror = mirror_to_wandb(run)
        trained(kept, mirror, steps=1)
        mirror.close()
        for step in (100, 200):
            run.log({"loss": 1.0}, step=step)
    rows = rows_of(tmp_path)
    assert [row["_step"] for row in rows if "loss" in row] == [100, 200]
    [row] = [row for row in rows if "roundoff/step" in row]
    figures = {
        name: value for name, value in row.items() if name.startswith("roundoff/") and "step" not in name
    }
    assert row["roundoff/step"] == 0
    assert figures == pytest.approx(expected_of_one(kept))


def expected_of_one(kept: Kept) -> dict[str, float]:
    [sample] = kept.samples
    written = Figures()
    again = mirror_to(lambda figures, step: written.__setitem__(step, figures))
    again.declare(kept.layers)
    again.sample(sample)
    again.close()
    return written[0]


def test_wandb_has_a_row_for_each_sample_if_that_is_wanted(tmp_path: Path) -> None:
    with wandb_run(tmp_path) as run:
        mirror = mirror_to_wandb(run, rows=True)
        trained(mirror)
        mirror.close()
        run.log({"loss": 1.0})
    rows = rows_of(tmp_path)
    assert [row["roundoff/step"] for row in rows if "roundoff/step" in row] == [0, 4, 8]
    assert [row["loss"] for row in rows if "loss" in row] == [1.0]


class Slow:
    """Numbers that a device has not finished: reading them waits, and says in which thread."""

    def __init__(self) -> None:
        self.read_in: list[str] = []

    def tolist(self) -> list[list[float]]:
        self.read_in.append(threading.current_thread().name)
        time.sleep(0.2)
        return [[1.0] * len(ROW)]


def test_the_training_thread_neither_reads_nor_waits_nor_fills_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow, steps = Slow(), []
    mirror = mirror_to(lambda figures, step: steps.append(step), layers=False)
    began = time.monotonic()
    for step in range(WAITING + 100):
        mirror.sample(Sample(step, [0], slow, slow, []))
    assert time.monotonic() - began < 0.2
    assert 98 <= mirror.dropped <= 100
    assert caplog.text.count("slower than samples come") == 1
    began = time.monotonic()
    mirror.close(timeout=0.5)
    assert time.monotonic() - began < 1
    assert set(slow.read_in) == {"roundoff-mirror"}
    assert steps == sorted(steps)


def test_a_tracker_that_fails_is_one_warning_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def failing(figures: dict[str, float], step: int) -> None:
        raise ConnectionError("the tracker is away")

    kept, mirror = Kept(), mirror_to(failing)
    trained(kept, mirror)
    began = time.monotonic()
    mirror.close()
    mirror.sample(kept.samples[0])
    assert time.monotonic() - began < 1
    assert [sample.step for sample in kept.samples] == [0, 4, 8]
    [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.message == "mirroring stopped, everything else goes on (ConnectionError: the tracker is away)"


def test_a_sample_that_is_waited_for_holds_no_histograms() -> None:
    """On a GPU they would stay on the device for as long as the tracker is slow."""
    held: list[Sample | None] = []
    mirror = Mirror(lambda figures, step: time.sleep(0.3), layers=False)
    numbers = torch.ones(1, len(ROW))
    for step in range(3):
        mirror.sample(Sample(step, [0], numbers, numbers, []))
    held.extend(mirror._queue.queue)
    mirror.close()
    assert [sample.headroom for sample in held if sample] in ([None, None], [None, None, None])


AT_EXIT = """
import sys, time
sys.path[:0] = [{tests!r}]
from test_mirror import mirror_to, trained
trained(mirror_to(lambda figures, step: (time.sleep(0.2), print(step, len(figures), flush=True))))
"""


def test_what_waits_is_handed_on_when_the_program_ends() -> None:
    code = AT_EXIT.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 14\n4 14\n8 14\n"), done.stderr
