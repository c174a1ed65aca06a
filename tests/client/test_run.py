"""The run as a training script meets it, against a real server and against none."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from samples import layers, sample

import roundoff
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
                   nonfinite=0.0, zero_grad=0.0)
        )  # fmt: skip
    while run.delivery.queued:
        time.sleep(0.05)
    found = run.alerts()
    assert [(alert.state, alert.run_id) for alert in found] == [("firing", run.id)]
    run.close()
    assert look(shared_server, run.id).state == "running"


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
    assert "20,000 of 20,000 points wait in" in caplog.text


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
            assert run.delivery.taken == 1, run.delivery
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
    assert done.stderr.count("roundoff: p/n at") == 2  # the parent's link, when it begins and when it ends
    assert done.stderr.count("its calls are dropped and counted") == 1
    assert scripted.batches[-1].dropped == {"calls (in a forked process)": 1}


def test_a_spawned_worker_gets_a_run_that_does_nothing(scripted: Any) -> None:
    run = roundoff.init("p", server=scripted.url, token="hunter2-hunter2")
    sent = pickle.dumps({"run": run, "size": 3})
    assert b"hunter2" not in sent
    there = pickle.loads(sent)["run"]
    there.log({"x": 1.0})
    there.finish()
    assert (there.id, there.delivery.taken) == (run.id, 0)
    assert copy.deepcopy({"run": run})["run"] is run
    run.log({"x": 2.0})
    run.finish()
    assert [value for _, _, value in scripted.scalars()] == [2.0]


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
        ({"mode": "of line"}, "offline"),
        ({"resume": {"run_id": 3}}, "state_dict"),
        ({"server": "gopher://x"}, "begins with http"),
        ({"run_id": "a/b"}, "cannot be used"),
        ({"name": ""}, "name"),
        ({"first_step": -1}, "first_step"),
    ],
)
def test_bad_settings_are_named_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        roundoff.init("p", **settings)
