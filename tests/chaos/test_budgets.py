"""What a run may cost its program: time in the training thread, memory, and time at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import psutil
import pytest
import torch
from arrived import only_run, points, sync
from faults import Between, slow
from programs import say

import roundoff
from roundoff.delivery import GroupSetting, Sample
from roundoff.delivery.queue import BACKLOG_BYTES, INBOX_BYTES
from roundoff.metrics import ROW
from roundoff.wire import Layer

CAP = INBOX_BYTES + BACKLOG_BYTES
"""The documented cap of what waits in memory."""


def times(call: Callable[[], None], calls: int) -> list[float]:
    """Seconds of each call, ascending."""
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return sorted(took)


def percentile(took: list[float], share: float) -> float:
    return took[int(share * len(took))]


@pytest.mark.parametrize("calls", [20_000, pytest.param(100_000, marks=pytest.mark.chaos)])
def test_a_log_call_takes_less_than_a_millisecond(black_hole: str, calls: int) -> None:
    run = roundoff.init("chaos", server=black_hole)
    took = times(lambda: run.log({"loss": 1.0}), calls)
    run.finish(timeout=0)
    say(
        f"run.log: median {statistics.median(took) * 1e6:.1f} µs, p99.9 {percentile(took, 0.999) * 1e6:.0f} µs"
    )
    assert percentile(took, 0.999) < 1e-3
    assert run.delivery.dropped == {}


@pytest.mark.parametrize("calls", [20_000, pytest.param(100_000, marks=pytest.mark.chaos)])
def test_handing_over_a_sample_takes_less_than_a_millisecond(black_hole: str, calls: int) -> None:
    """The hook's part that is delivery's: a step of ten layers, its sums a tensor."""
    run = roundoff.init("chaos", server=black_hole)
    assert run._intake is not None
    declared = [Layer(index=i, name=f"layer.{i}", shape=[10], numel=10, dtype="bfloat16") for i in range(10)]
    run._intake.declare(declared)
    steps = count()
    sums = torch.ones(10, len(ROW), dtype=torch.float64)

    def hand_over() -> None:
        assert run._intake is not None
        run._intake.sample(Sample(next(steps), range(10), sums, None, [GroupSetting(0, 1e-3, 0.1)]))

    took = times(hand_over, calls)
    run.finish(timeout=0)
    say(
        f"sample: median {statistics.median(took) * 1e6:.1f} µs, p99.9 {percentile(took, 0.999) * 1e6:.0f} µs"
    )
    assert percentile(took, 0.999) < 1e-3
    state = run.delivery
    assert state.taken == calls


@pytest.mark.parametrize(
    ("steps", "share"), [(3_000, 0.99), pytest.param(100_000, 0.999, marks=pytest.mark.chaos)]
)
def test_the_hooks_around_a_step_take_less_than_a_millisecond(
    black_hole: str, steps: int, share: float
) -> None:
    """All that the watch of a model of ten layers does, sampled as by default."""
    weights = [torch.nn.Parameter(torch.randn(16).bfloat16()) for _ in range(10)]
    optimizer = roundoff.CollageAdamW(weights)
    run = roundoff.init("chaos", server=black_hole)
    began, took = [0.0], []

    def start(*_: object) -> None:
        began[0] = time.perf_counter()

    def stop(*_: object) -> None:
        took.append(time.perf_counter() - began[0])

    optimizer.register_step_pre_hook(start)
    optimizer.register_step_post_hook(start)
    watch = run.watch(torch.nn.ParameterList(weights), optimizer)
    optimizer.register_step_pre_hook(stop)
    optimizer.register_step_post_hook(stop)
    assert watch is not None
    for weight in weights:
        weight.grad = torch.randn(16).bfloat16()
    for _ in range(100 + steps):
        optimizer.step()
    assert watch.history.samples > 300
    run.finish(timeout=0)
    both = sorted(before + after for before, after in zip(took[200::2], took[201::2], strict=True))
    assert len(both) == steps
    say(
        f"hooks: median {statistics.median(both) * 1e6:.1f} µs, "
        + ", ".join(f"p{100 * one:g} {percentile(both, one) * 1e6:.0f} µs" for one in (0.99, 0.999))
    )
    assert percentile(both, share) < 1e-3


@pytest.mark.parametrize("calls", [300_000, pytest.param(10_000_000, marks=pytest.mark.chaos)])
@pytest.mark.timeout(1500)
def test_memory_is_bounded_without_a_server(nobody: str, calls: int) -> None:
    run = roundoff.init("chaos", server=nobody)
    for _ in range(1000):
        run.log({"loss": 1.0})
    time.sleep(0.5)
    process = psutil.Process()
    before = most = process.memory_info().rss
    for step in range(1000, calls):
        run.log({"loss": 1.0}, step=step)
        if step % 10_000 == 0:
            most = max(most, process.memory_info().rss)
    state = run.delivery
    run.finish(timeout=0)
    say(f"{calls:,} calls: memory grew by {(most - before) / 2**20:.1f} MiB; {state}")
    assert most - before < CAP
    after = run.delivery
    assert after.taken == calls == after.spooled + after.sent + sum(after.dropped.values())


@pytest.mark.parametrize("steps", [2_000, pytest.param(60_000, marks=pytest.mark.chaos)])
def test_finish_is_in_time_and_sync_sends_the_rest(
    server: str, faulty: Between, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The long form is three million points; the server takes one batch a second, some 130,000 values."""
    if steps < 10_000:
        monkeypatch.setattr("roundoff.delivery.sender.BATCH_BYTES", 2**15)
    faulty.fault = slow(1.0)
    run = roundoff.init("chaos", server=faulty.url, spool=tmp_path / "spool")
    names = [f"value/{number}" for number in range(50)]
    for step in range(steps):
        run.log(dict.fromkeys(names, float(step)), step=step)
        if step % 100 == 0:
            time.sleep(0.01)
    began = time.monotonic()
    run.finish(timeout=10)
    took = time.monotonic() - began
    state = run.delivery
    say(f"finish took {took:.2f} s, {state}")
    assert took < 12
    assert (state.taken, state.dropped) == (steps * 50, {})
    assert 0 < state.sent < state.taken == state.sent + state.spooled
    faulty.fault = None
    time.sleep(1.5)  # the last batch that was on its way
    assert [left.state for left in sync(tmp_path / "spool")] == ["sent"]
    run_id = only_run(server).id
    for name in names:
        assert points(server, run_id, steps, f"scalar:{name}") == {step: float(step) for step in range(steps)}
