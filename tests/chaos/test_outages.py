"""Whatever the server or the way to it does: the training ends well, its losses are the same, all points come once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from arrived import only_run, points, summary, sync
from faults import Between, Fault, closed, endless, first, garbage, html, lost_answer, silence, slow, status
from programs import Programs, eventually, finished

import roundoff

STEPS = 150


def losses(programs: Programs, out: str) -> list[float]:
    return [loss for loss, _ in programs.trained(out).values()]


def arrived(programs: Programs, server: str, steps: int) -> None:
    """All of it is there, once, with the trainer's own values."""
    run = only_run(server)
    expected = {step: loss for step, (loss, _) in programs.trained("with").items()}
    assert points(server, run.id, steps) == expected
    assert len(points(server, run.id, steps, "update_norm")) == steps
    assert (run.step, run.dropped) == (steps - 1, {})


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.chaos)])
def test_a_server_that_is_killed_again_and_again(programs: Programs, revivable: Any, kills: int) -> None:
    steps = 100 * (kills + 1)
    flags = ("--steps", str(steps), "--pace", "0.02")
    bare = programs.train("without", "--steps", str(steps))
    training = programs.train("with", *flags, "--server", revivable.url)
    for number in range(kills):
        eventually(lambda number=number: len(programs.trained("with")) > 100 * number + 50, 90)
        revivable.kill()
        time.sleep(0.5)
        revivable.up()
    finished(training)
    finished(bare)
    sync(programs.spool)
    assert losses(programs, "with") == losses(programs, "without")
    arrived(programs, revivable.url, steps)


FAULTS: dict[str, Callable[[Between], Fault]] = {
    "500": lambda _: status(500),
    "429": lambda _: status(429, Retry_After="1"),
    "503": lambda _: status(503),
    "garbage": lambda _: garbage,
    "a captive portal": lambda _: html,
    "silence": lambda _: silence,
    "hangs up": lambda _: closed,
    "the answer is lost": lost_answer,
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_on_the_way(programs: Programs, faulty: Between, name: str) -> None:
    faulty.fault = FAULTS[name](faulty)
    bare = programs.train("without", "--steps", str(STEPS))
    training = programs.train("with", "--steps", str(STEPS), "--server", faulty.url, "--pace", "0.01")
    finished(training)
    finished(bare)
    assert losses(programs, "with") == losses(programs, "without")
    faulty.fault = None
    assert [left.state for left in sync(programs.spool)] == ["sent"]
    arrived(programs, faulty.target, STEPS)


@pytest.mark.parametrize("scheme", ["https", "nobody"])
def test_no_connection_at_all(programs: Programs, server: str, nobody: str, scheme: str) -> None:
    """A server that refuses TLS, and none; the data goes to the right one later."""
    address = server.replace("http:", "https:") if scheme == "https" else nobody
    training = programs.train("with", "--steps", str(STEPS), "--server", address)
    assert "send them with `roundoff sync`" in finished(training)
    assert [left.state for left in sync(programs.spool, server)] == ["sent"]
    arrived(programs, server, STEPS)


def test_a_server_that_is_stopped_and_goes_on(programs: Programs, revivable: Any) -> None:
    training = programs.train("with", "--steps", "300", "--pace", "0.01", "--server", revivable.url)
    eventually(lambda: len(programs.trained("with")) > 50, 60)
    revivable.signal(signal.SIGSTOP)
    eventually(lambda: len(programs.trained("with")) == 300)
    revivable.signal(signal.SIGCONT)
    finished(training)
    sync(programs.spool)
    arrived(programs, revivable.url, 300)


def test_a_slow_server(programs: Programs, faulty: Between) -> None:
    faulty.fault = slow(1.0)
    finished(programs.train("with", "--steps", "300", "--pace", "0.01", "--server", faulty.url))
    sync(programs.spool)
    arrived(programs, faulty.target, 300)


def test_create_run_is_answered_and_the_answer_lost_three_times(faulty: Between) -> None:
    faulty.fault = first(3, lost_answer(faulty), "PUT")
    run = roundoff.init("chaos", server=faulty.url)
    run.log({"loss": 1.0})
    run.finish()
    shown = only_run(faulty.target)
    assert (shown.id, shown.attempts, shown.state) == (run.id, 1, "finished")


def test_429_is_waited_for_and_what_comes_meanwhile_goes_together(faulty: Between) -> None:
    faulty.fault = first(1, status(429, Retry_After="2"), "POST")
    run = roundoff.init("chaos", server=faulty.url)
    for step in range(800):
        run.log({"loss": float(step)}, step=step)
        time.sleep(0.001)
    run.finish()
    assert len(points(faulty.target, run.id, 800)) == 800
    assert sum(method == "POST" for method, _ in faulty.seen) <= 4


def test_413_splits_and_one_record_alone_is_refused_once(faulty: Between) -> None:
    def too_large(request: Any) -> bool:
        return len(request.body) > 6000 and status(413)(request)

    faulty.fault = too_large
    run = roundoff.init("chaos", server=faulty.url)
    for step in range(500):
        run.log({"loss": step / 7, f"other/{step}": step / 3}, step=step)
    run.log({f"many/{name}": name / 7 for name in range(2000)}, step=500)
    run.log({"loss": 1.0}, step=501)
    run.finish(timeout=30)
    assert len(points(faulty.target, run.id, 502)) == 501
    refused = {"points (refused by the server)": 2000}
    assert run.delivery.dropped == refused
    assert summary(faulty.target, run.id).dropped == refused


def test_an_answer_without_an_end_is_not_read_to_it(faulty: Between) -> None:
    faulty.fault = endless
    run = roundoff.init("chaos", server=faulty.url)
    run.log({"x": 1.0})
    eventually(lambda: run.delivery.problem == "the answer does not end", 5)
    faulty.fault = None
    run.finish(timeout=60)
    assert run.delivery.sent == 1


@pytest.mark.parametrize("kind", ["nobody", "black_hole", "https"])
def test_init_returns_in_time(kind: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue("server" if kind == "https" else kind)
    began = time.monotonic()
    run = roundoff.init("chaos", server=address.replace("http:", "https:") if kind == "https" else address)
    assert time.monotonic() - began < 2
    run.log({"x": 1.0})
    run.finish(timeout=0)


@pytest.mark.parametrize("count", [100_000, pytest.param(2_000_000, marks=pytest.mark.chaos)])
def test_a_long_outage(nobody: str, start_server: Any, tmp_path: Any, count: int) -> None:
    """As many values as 15 hours have (at the long form, 37 a second), then a server."""
    run = roundoff.init("chaos", server=nobody)
    names = [f"value/{number}" for number in range(100)]
    for step in range(count // 100):
        run.log(dict.fromkeys(names, float(step)), step=step)
        if step % 1000 == 999:  # 15 hours leave the collector its time
            eventually(lambda step=step: run.delivery.spooled == 100 * (step + 1), 120)  # type: ignore[misc]
    assert run.delivery.spooled == count
    with start_server(f"sqlite:///{tmp_path / 'late.db'}", "--port", nobody.rpartition(":")[2]) as running:
        run.finish(timeout=240)
        assert run.delivery.sent == count
        for name in (names[0], names[-1]):
            found = points(running.url, run.id, count // 100, f"scalar:{name}")
            assert found == {step: float(step) for step in range(count // 100)}
