"""A watch that comes and goes leaves nothing behind: no hook, no tensor, no thread, no file."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch

import roundoff


@pytest.mark.parametrize("times", [100])
def test_watched_a_hundred_times(server: str, tmp_path: Path, times: int) -> None:
    model = torch.nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    def attempt(number: int) -> None:
        run = roundoff.init("chaos", server=server, spool=tmp_path / "spool", run_id=f"run{number}")
        run.watch(model, optimizer, every=1)
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(1, 8, dtype=torch.bfloat16))
        run.finish()

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    attempt(0)
    before = tensors()
    for number in range(1, times):
        attempt(number)
    assert tensors() == before
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, model._forward_hooks)
    assert [len(found) for found in hooks] == [0, 0, 0]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("roundoff")]
    assert list((tmp_path / "spool").iterdir()) == []
