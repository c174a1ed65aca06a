"""The run as a training script meets it, against a real server and against none."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from samples import layers, sample

import roundoff
from roundoff.delivery.pipeline import BAD_VALUE
from roundoff.run import MANY_NAMES, SAMPLE_BACK, STEP_BACK
from roundoff.wire import RunSummary


def look(server: str, run_id: str) -> RunSummary:
    with roundoff.Client(server) as client:
        return client.run(run_id)


def series(server: str, run_id: str, name: str) -> dict[int, float | None]:
    with roundoff.Client(server) as client:
        found = client.series(run_id, f"scalar:{name}")
    return dict(zip(found.steps, found.values, strict=True))


def test_a_run_from_init_to_page(shared_server: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roundoff")
    config = {"lr": 0.1, "api_key": "hunter2"}
    run = roundoff.init("shop", "first", config, server=shared_server, tags=["a"])
    for step in range(5):
        run.log({"loss": 5.0 - step, "val": {"loss": 2.0}}, step=step)
    run.finish()
    shown = look(shared_server, run.id)
    assert (shown.project, shown.name, shown.state, shown.loss, shown.tags) == (
        "shop", "first", "finished", 1.0, ["a"],
    )  # fmt: skip
    assert shown.config == {"lr": 0.1, "api_key": "***"}
    assert series(shared_server, run.id, "val/loss") == dict.fromkeys(range(5), 2.0)
    assert run.page == f"{shared_server}/runs/{run.id}"
    assert caplog.text.count(run.page) == 2  # when it begins and when it ends


def test_a_watched_training_is_measured_and_judged(
    shared_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundoff")
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = roundoff.CollageAdamW(model.named_parameters(), lr=1e-4, strategy="none")
    run = roundoff.init("shop", "stalls", server=shared_server)
    watch = run.watch(model, optimizer, every=1)
    assert watch is not None
    for step in range(30):
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
        run.log({"loss": 1.0}, step=step)
    run.finish()
    shown = look(shared_server, run.id)
    assert (shown.health, shown.layers, shown.layers_stalling, shown.step) == ("stalling", 1, 1, 29)
    assert shown.lost_fraction is not None
    assert shown.lost_fraction > 0.9
    assert [alert.rule for alert in _alerts(shared_server, run.id)]
    assert "updates to rounding" in caplog.text
    assert not optimizer._optimizer_step_post_hooks


def _alerts(server: str, run_id: str) -> list[Any]:
    with roundoff.Client(server) as client:
        return client.alerts(run_id=run_id).alerts


def test_the_alerts_of_a_run_can_be_asked_for_while_it_goes(shared_server: str) -> None:
    run = roundoff.init("shop", server=shared_server)
    assert run._pipeline is not None
    run._pipeline.declare(layers(2))
    for step in range(40):
        run._pipeline.sample(
            sample(step, attempted=1000.0, lost=1000.0, sum_uu=1.0, sum_ua=0.0, expected_roundings=500.0,
                   nonfinite=0.0)
        )  # fmt: skip
    while run.delivery.queued:
        time.sleep(0.05)
    found = run.alerts()
    assert [(alert.state, alert.run_id) for alert in found] == [("firing", run.id)]
    run.close()
    assert look(shared_server, run.id).state == "running"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308])
def test_every_number_survives(shared_server: str, value: float) -> None:
    run = roundoff.init("shop", server=shared_server)
    run.log({"x": value}, step=3)
    run.finish()
    (back,) = series(shared_server, run.id, "x").values()
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
    from roundoff.run import _RunSink

    run = roundoff.init("p", server=scripted.url)
    sink = _RunSink(run)
    sink.declare(layers(2))
    for step in (5, 3, 5, 6):
        sink.sample(sample(step))
    run.finish()
    assert [s for b in scripted.batches if b.model for s in b.model.step.values()] == [5, 6]
    assert run.delivery.dropped == {SAMPLE_BACK: 2}
    assert caplog.text.count("went back from 5 to 3") == 1


def test_names_are_bounded(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundoff.run.MAX_NAMES", 3)
    run = roundoff.init("p", server=scripted.url)
    for number in range(5):
        run.log({f"x{number}": 1.0}, step=0)
    run.finish()
    assert run.delivery.dropped == {MANY_NAMES: 2}


def test_a_watch_that_cannot_be_made_is_a_warning(scripted: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = roundoff.init("p", server=scripted.url)
    other = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    assert run.watch(other, optimizer) is None
    assert run.watch(other, optimizer, every=0) is None
    assert "the optimizer is not watched" in caplog.text
    run.finish()


def test_disabled_is_a_no_op(black_hole: str) -> None:
    run = roundoff.init("p", server=black_hole, mode="disabled")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert run.watch(model, optimizer) is None
    assert not optimizer._optimizer_step_pre_hooks
    run.log({"x": 1.0})
    assert run.alerts() == []
    assert run.page is None
    run.finish()
    run.close()
    assert run.delivery.taken == 0


@pytest.mark.parametrize("kind", ["nobody", "black_hole"])
def test_without_a_server_training_goes_on(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundoff")
    server = request.getfixturevalue(kind)
    began = time.monotonic()
    run = roundoff.init("p", "n", server=server)
    assert time.monotonic() - began < 2
    assert f"no server at {server}" in caplog.text
    took = []
    for step in range(20_000):
        before = time.perf_counter()
        run.log({"loss": 1.0}, step=step)
        took.append(time.perf_counter() - before)
    assert run.delivery.taken == 20_000
    assert run.delivery.lag_s > 0
    began = time.monotonic()
    run.finish(timeout=1)
    assert time.monotonic() - began < 1.5
    assert sorted(took)[int(0.99 * len(took))] < 1e-3
    assert "20,000 of 20,000 points were not delivered" in caplog.text


def test_without_any_server_one_line_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: Any, nobody: str
) -> None:
    caplog.set_level(logging.INFO, "roundoff")
    monkeypatch.setattr("roundoff.run.DEFAULT_SERVER", nobody)
    run = roundoff.init("p", "n")
    assert len(caplog.records) == 1
    assert "roundoff serve" in caplog.records[0].getMessage()
    began = time.monotonic()
    run.finish()
    assert time.monotonic() - began < 2


def test_a_server_that_comes_up_late_gets_everything(start_server: Any, tmp_path: Any, nobody: str) -> None:
    port = nobody.rpartition(":")[2]
    run = roundoff.init("p", server=nobody)
    for step in range(100):
        run.log({"x": float(step)})
    with start_server(f"sqlite:///{tmp_path / 'late.db'}", "--port", port) as running:
        run.finish(timeout=20)
        assert series(running.url, run.id, "x") == {step: float(step) for step in range(100)}
    assert run.delivery.sent == 100


def test_starting_a_run_twice_is_one_run_and_two_attempts(shared_server: str) -> None:
    for first_step in (0, 5):
        run = roundoff.init("p", server=shared_server, run_id="my-run", first_step=first_step)
        for step in range(first_step, first_step + 8):
            run.log({"x": float(first_step)}, step=step)
        run.finish()
    assert look(shared_server, "my-run").attempts == 2
    assert series(shared_server, "my-run", "x") == {step: 0.0 if step < 5 else 5.0 for step in range(13)}


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (None, "finished"),
        (RuntimeError("x"), "crashed"),
        (SystemExit(0), "finished"),
        (SystemExit(3), "crashed"),
        (KeyboardInterrupt(), "crashed"),
    ],
)
def test_the_with_block_tells_how_it_ended(scripted: Any, how: BaseException | None, state: str) -> None:
    expected = pytest.raises(type(how)) if how else nullcontext()
    with expected, roundoff.init("p", server=scripted.url):
        if how:
            raise how
    assert scripted.batches[-1].end == state


@pytest.mark.parametrize(
    ("ending", "code", "state"),
    [
        ("", 0, "finished"),
        ("raise RuntimeError('the training fails')", 1, "crashed"),
        ("sys.exit(3)", 3, "finished"),
        ("os._exit(4)", 4, None),
    ],
)
def test_a_program_that_ends_without_finish(scripted: Any, ending: str, code: int, state: str | None) -> None:
    program = f"""
        import os, sys, time, roundoff
        run = roundoff.init("p", "n", server={scripted.url!r})
        run.log({{"x": 1.0}})
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    ends = [batch.end for batch in scripted.batches if batch.end]
    assert ends == ([state] if state else [])
    if state:
        assert scripted.scalars() == [(0, "x", 1.0)]
        assert done.stdout == ""
        assert "roundoff: p/n at http" in done.stderr


def test_a_forked_child_leaves_the_parents_run_alone(scripted: Any) -> None:
    program = f"""
        import os, sys, warnings, roundoff
        warnings.simplefilter("ignore")
        run = roundoff.init("p", "n", server={scripted.url!r})
        run.log({{"x": 1.0}})
        child = os.fork()
        if not child:
            run.log({{"x": 2.0}})
            run.finish()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run.log({{"x": 3.0}})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [value for _, _, value in scripted.scalars()] == [1.0, 3.0]
    assert [batch.end for batch in scripted.batches if batch.end] == ["finished"]


def test_only_the_first_rank_speaks(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundoff")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = roundoff.init("p", server=scripted.url)
    run.log({"x": 1.0})
    run.finish()
    assert caplog.text == ""
    assert (scripted.starts[0]["rank"], scripted.starts[0]["world_size"]) == (1, 2)
    assert scripted.batches[0].rank == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "offline"}, "spool"),
        ({"server": "gopher://x"}, "begins with http"),
        ({"run_id": "a/b"}, "cannot be used"),
        ({"name": ""}, "name"),
        ({"first_step": -1}, "first_step"),
    ],
)
def test_bad_settings_are_named_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        roundoff.init("p", **settings)
