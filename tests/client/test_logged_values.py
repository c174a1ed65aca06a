"""What a script logs: which values and steps are taken, and what becomes of the others."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from samples import layers, sample

import roundoff
from roundoff.delivery.collector import BAD_VALUE
from roundoff.delivery.intake import MANY_NAMES, SAMPLE_BACK, STEP_BACK


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308])
def test_every_number_survives(shared_server: str, value: float) -> None:
    run = roundoff.init("shop", server=shared_server)
    run.log({"x": value}, step=3)
    run.finish()
    with roundoff.Client(shared_server) as client:
        (back,) = client.series(run.id, "scalar:x").values
    assert back is not None
    assert np.float64(back).tobytes() == np.float64(value).tobytes()


def test_what_can_be_logged(scripted: Any) -> None:
    values = {
        "int": 3,
        "bool": True,
        "numpy": np.float32(0.5),
        "zero-dim": np.array(2.0),
        "tensor": torch.tensor([1.5], requires_grad=True),
        "bf16": torch.tensor(0.25, dtype=torch.bfloat16),
        "nested": {"deep": {"er": 7}},
        "a/b [%] 🙂": 1,
    }
    run = roundoff.init("p", server=scripted.url)
    run.log(values, step=np.int64(4))
    run.finish()
    assert {(name, value) for _, name, value in scripted.scalars()} == {
        ("int", 3.0), ("bool", 1.0), ("numpy", 0.5), ("zero-dim", 2.0), ("tensor", 1.5), ("bf16", 0.25),
        ("nested/deep/er", 7.0), ("a/b [%] 🙂", 1.0),
    }  # fmt: skip
    assert {step for step, _, _ in scripted.scalars()} == {4}


class OnADevice:
    """A one-element tensor that is not in main memory, as far as a machine without one can tell."""

    device = torch.device("meta")

    def __init__(self, value: float) -> None:
        self.value, self.read = value, 0

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False

    def detach(self) -> OnADevice:
        return self

    def clone(self) -> OnADevice:
        return OnADevice(self.value)

    def item(self) -> float:
        self.read += 1
        return self.value


def test_a_value_on_a_device_is_copied_there_and_read_later(scripted: Any) -> None:
    run = roundoff.init("p", server=scripted.url)
    value = OnADevice(1.0)
    run.log({"loss": value})
    value.value = 2.0
    run.finish()
    assert value.read == 0
    assert scripted.scalars() == [(0, "loss", 1.0)]


class Rude:
    def __float__(self) -> float:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "values",
    [
        {"x": "1.0"}, {"x": None}, {"x": [1.0]}, {"x": torch.ones(3)}, {"x": 1j}, {"x": 10**400}, {"x": Rude()},
        {"": 1.0}, {"x" * 1025: 1.0}, None, 7, Rude(),
    ],
)  # fmt: skip
def test_what_cannot_be_logged_warns_once_is_counted_and_never_raises(
    scripted: Any, values: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = roundoff.init("p", server=scripted.url)
    run.log(values)
    run.log(values)
    run.log({"fine": 1.0})
    run.finish()
    assert run.delivery.dropped == {BAD_VALUE: 2}
    assert scripted.batches[-1].dropped == {BAD_VALUE: 2}
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert [name for _, name, _ in scripted.scalars()] == ["fine"]


@pytest.mark.parametrize("step", [-1, 2**63, 1.5, "3", math.nan])
def test_a_step_that_is_none_is_counted(scripted: Any, step: Any) -> None:
    run = roundoff.init("p", server=scripted.url)
    run.log({"x": 1.0}, step=step)
    run.finish()
    assert run.delivery.dropped == {BAD_VALUE: 1}


def test_a_step_that_goes_back_is_dropped_with_one_warning(
    scripted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = roundoff.init("p", server=scripted.url)
    run.log({"loss": 1.0}, step=212)
    run.log({"loss": 2.0}, step=200)
    run.log({"loss": 3.0}, step=201)
    run.log({"other": 4.0}, step=205)  # its own first value
    run.log({"loss": 5.0}, step=212)
    run.log({"loss": 6.0})
    run.finish()
    assert [(step, value) for step, _, value in scripted.scalars()] == [
        (212, 1.0), (205, 4.0), (212, 5.0), (213, 6.0),
    ]  # fmt: skip
    assert run.delivery.dropped == {STEP_BACK: 2}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "from 212 to 200" in warnings[0]
    assert "first_step=200" in warnings[0]


def test_a_sample_that_goes_back_is_dropped(scripted: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = roundoff.init("p", server=scripted.url)
    sink = run._intake
    assert sink is not None
    sink.declare(layers(2))
    for step in (5, 3, 5, 6):
        sink.sample(sample(step))
    run.finish()
    assert [s for b in scripted.batches if b.model for s in b.model.step.values()] == [5, 6]
    assert run.delivery.dropped == {SAMPLE_BACK: 2}
    assert caplog.text.count("went back from 5 to 3") == 1


def test_names_are_bounded(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundoff.delivery.intake.MAX_NAMES", 3)
    run = roundoff.init("p", server=scripted.url)
    for number in range(5):
        run.log({f"x{number}": 1.0}, step=0)
    run.finish()
    assert run.delivery.dropped == {MANY_NAMES: 2}
