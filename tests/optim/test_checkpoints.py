"""Checkpoints of one process: nothing is lost, in the same layout bit for bit, in another one within its words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import resuming
import torch
from resuming import CASES, MORE, STEPS, Case, Training
from torch import Tensor


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which another process has gone on with every training, all in one go: it starts slowly."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for case in CASES:
        training = Training(case)
        training.advance(1, STEPS)
        torch.save(training.saved(), folder / f"{case.name}.pt")
        torch.save(training.everything(), folder / f"{case.name}.before.pt")
    command = [sys.executable, "-W", "error", str(resuming.__file__), str(folder)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def assert_equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ten_steps_in_a_new_process_equal_ten_uninterrupted_ones(resumed: Path, case: Case) -> None:
    before = torch.load(resumed / f"{case.name}.before.pt")
    loaded, after = torch.load(resumed / f"{case.name}.after.pt")
    assert_equal(loaded, before)
    straight = Training(case)
    straight.advance(1, STEPS + MORE)
    assert_equal(after, straight.everything())
