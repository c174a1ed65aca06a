"""The tracker in a real Accelerator, and prepared, compiled and replicated models under the user's own names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState, PartialState
from reading import Kept, Stored
from torch import Tensor, nn
from torch.utils.data import DataLoader

import roundoff
from roundoff.integrations.accelerate import RoundoffTracker


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """An Accelerator's state is shared by all of a process."""
    yield
    for shared in (AcceleratorState, GradientState, PartialState):
        shared._reset_state()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)).bfloat16()


NAMES = [name for name, _ in net().named_parameters()]


def loop(
    accelerator: Accelerator, model: nn.Module, optimizer: AcceleratedOptimizer, steps: int
) -> list[float]:
    """`steps` optimizer steps of as many accumulated batches as the accelerator says; their last losses."""
    rows = torch.randn(256, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    loader: DataLoader[Tensor] = accelerator.prepare(DataLoader(rows, batch_size=4))  # type: ignore[arg-type]
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = (model(batch) - batch).float().square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({"loss": loss}, step=len(losses))
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


def test_a_tracker_is_a_run_with_its_config_its_losses_and_a_watch(shared_server: str) -> None:
    tracker = RoundoffTracker("tracked", name="first", server=shared_server)
    accelerator = Accelerator(cpu=True, log_with=tracker, gradient_accumulation_steps=3)
    accelerator.init_trackers("tracked", config={"lr": 1e-4})
    model = net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    assert isinstance(optimizer, AcceleratedOptimizer)
    assert tracker.watch(model, optimizer, every=5) is not None
    losses = loop(accelerator, model, optimizer, 16)
    accelerator.end_training()
    stored = Stored(shared_server)
    [run] = stored.runs("tracked")
    assert (run.name, run.state, run.health, run.config) == ("first", "finished", "stalling", {"lr": 1e-4})
    assert list(stored.series(run.id, "lost_fraction")) == [0, 5, 10, 15]
    assert list(stored.series(run.id, "scalar:loss").values()) == pytest.approx(losses)
    assert list(stored.layers(run.id)) == NAMES
    assert accelerator.get_tracker("roundoff", unwrap=True).id == run.id


def test_without_a_config_the_run_begins_with_its_first_use(shared_server: str) -> None:
    tracker = RoundoffTracker("late", server=shared_server)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("late")
    assert Stored(shared_server).runs("late") == []
    accelerator.log({"loss": 1.0}, step=3)
    accelerator.end_training()
    [run] = Stored(shared_server).runs("late")
    assert (run.state, run.loss) == ("finished", 1.0)


def test_training_is_bit_identical_with_and_without() -> None:
    ends = []
    for watched in (False, True):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = net()
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        if watched:
            kept = Kept()
            roundoff.watch(model, optimizer, every=3, sink=kept)
        ends.append(
            (loop(accelerator, model, optimizer, 10), [param.clone() for param in model.parameters()])
        )
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))
    assert [sample.step for sample in kept.samples] == [0, 3, 6, 9]


def test_a_compiled_model_keeps_its_names() -> None:
    from accelerate.utils import TorchDynamoPlugin

    accelerator = Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    model = net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    assert next(iter(dict(model.named_parameters()))).startswith("_orig_mod.")
    with roundoff.watch(model, optimizer) as watching:
        assert [layer.name for layer in watching.layers] == NAMES
        loop(accelerator, model, optimizer, 2)
        assert watching.step == 2


TWO = """
import os, sys
sys.path[:0] = [{tests!r}]
import torch
from test_accelerate import Accelerator, RoundoffTracker, loop, net
torch.set_num_threads(1)
tracker = RoundoffTracker("two")
accelerator = Accelerator(cpu=True, log_with=tracker)
accelerator.init_trackers("two")
model = net()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
watching = tracker.watch(model, optimizer, every=2)
assert (watching is None) == (accelerator.process_index == 1)
loop(accelerator, model, optimizer, 8)
accelerator.end_training()
print(type(model).__name__, flush=True)
"""


def test_two_processes_are_one_run_measured_once(tmp_path: Path, shared_server: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWO.format(tests=str(Path(__file__).parent)), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "ROUNDOFF_SERVER": shared_server, "PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ROUNDOFF_RUN_ID": "two-ranks",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        out, err = rank.communicate(timeout=200)
        assert (rank.returncode, out) == (0, "DistributedDataParallel\n"), err
    stored = Stored(shared_server)
    [run] = stored.runs("two")
    assert (run.id, run.state, run.step) == ("two-ranks", "finished", 7)
    assert list(stored.layers(run.id)) == NAMES
    assert stored.series(run.id, "lost_fraction").keys() == {0, 2, 4, 6}
