"""What the sender makes of every kind of answer: nothing lost, nothing twice, everything counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from samples import layers, sample
from scripted_server import Answer, Scripted, problem

import roundoff
from roundoff.delivery.sender import REFUSED


def begin(server: Scripted, **settings: Any) -> roundoff.Run:
    return roundoff.init("p", "n", server=server.url, **settings)


def first(number: int, answer: Answer, method: str = "POST") -> Callable[[str, bytes], Answer | None]:
    """A script that gives `answer` to the first requests of a method."""
    left = [number]

    def script(asked: str, body: bytes) -> Answer | None:
        if asked != method or not left[0]:
            return None
        left[0] -= 1
        return answer

    return script


def batches_of(server: Scripted) -> list[bytes]:
    return [body for method, _, body in server.seen if method == "POST"]


def test_values_arrive_once_and_in_order(scripted: Scripted) -> None:
    run = begin(scripted)
    for step in range(1000):
        run.log({"loss": step / 2})
    run.finish()
    assert scripted.scalars() == [(step, "loss", step / 2) for step in range(1000)]
    assert scripted.batches[-1].end == "finished"
    assert [batch.seq for batch in scripted.batches] == list(range(len(scripted.batches)))
    state = run.delivery
    assert (state.taken, state.sent, state.queued, state.dropped) == (1000, 1000, 0, {})


@pytest.mark.parametrize("status", [500, 502, 503, 408, 401, 403])
def test_what_passes_is_tried_again(scripted: Scripted, status: int) -> None:
    scripted.script = first(2, problem(status))
    run = begin(scripted)
    run.log({"loss": 1.0})
    run.finish()
    assert scripted.scalars() == [(0, "loss", 1.0)]
    bodies = batches_of(scripted)
    assert bodies[0] == bodies[1] == bodies[2]


def test_retry_after_is_followed(scripted: Scripted) -> None:
    scripted.script = first(1, problem(429, **{"Retry-After": "1"}))
    run = begin(scripted)
    run.log({"loss": 1.0})
    began = time.monotonic()
    run.finish()
    assert 0.9 < time.monotonic() - began < 4
    assert scripted.scalars() == [(0, "loss", 1.0)]


def test_create_run_is_tried_until_it_is_answered(scripted: Scripted) -> None:
    scripted.script = first(3, problem(503), "PUT")
    run = begin(scripted)
    run.log({"loss": 1.0})
    run.finish()
    assert scripted.scalars() == [(0, "loss", 1.0)]
    tokens = {body for method, _, body in scripted.seen if method == "PUT"}
    assert len(tokens) == 1


def test_a_lost_answer_does_not_double_data(scripted: Scripted) -> None:
    lose = [3]

    def script(method: str, body: bytes) -> Answer | None:
        if method == "POST" and lose[0]:
            lose[0] -= 1
            scripted.script = lambda *_: None
            scripted.answer(method, "/", body)  # taken, but the client hears something else
            scripted.script = script
            return 200, {}, b"<html>an answer of some proxy</html>"
        return None

    scripted.script = script
    run = begin(scripted)
    run.log({"loss": 1.0})
    run.finish()
    assert scripted.scalars() == [(0, "loss", 1.0)]
    assert run.delivery.sent == 1


def test_too_large_is_split_down_to_what_fits(scripted: Scripted) -> None:
    limit = 40_000
    scripted.script = lambda method, body: problem(413) if method == "POST" and len(body) > limit else None
    run = begin(scripted)
    assert run._pipeline is not None
    run._pipeline.declare(layers(3))
    for step in range(30):
        run._pipeline.sample(sample(step, 3))
    run.finish()
    assert [s for b in scripted.batches if b.model for s in b.model.step.values()] == list(range(30))
    assert sum(len(b.headroom) for b in scripted.batches if b.headroom) == 90
    assert run.delivery.dropped == {}


def test_calls_that_became_one_record_are_split_as_well(scripted: Scripted) -> None:
    scripted.script = lambda method, body: problem(413) if len(body) > 3000 else None
    run = begin(scripted)
    for step in range(3000):
        run.log({"loss": step / 7, "lr": step / 3}, step=step)
    run.finish(timeout=60)
    assert sorted(scripted.scalars()) == sorted(
        one for step in range(3000) for one in ((step, "loss", step / 7), (step, "lr", step / 3))
    )
    state = run.delivery
    assert (state.sent, state.queued, state.spooled, state.dropped) == (6000, 0, 0, {})


def test_one_record_that_is_too_large_loses_its_detail_first(scripted: Scripted) -> None:
    scripted.script = lambda method, body: problem(413) if method == "POST" and len(body) > 12_000 else None
    run = begin(scripted)
    assert run._pipeline is not None
    run._pipeline.declare(layers(3))
    run._pipeline.sample(sample(0, 3, headroom=True))
    run._pipeline.sample(sample(1, 60, headroom=True))
    run.finish()
    assert [s for b in scripted.batches if b.model for s in b.model.step.values()] == [0, 1]
    dropped = run.delivery.dropped
    assert dropped["histograms (too large for the server)"] >= 60
    assert dropped["layer rows (too large for the server)"] == 60
    assert run.delivery.sent == 2


def test_refused_for_good_is_counted_and_the_rest_goes_on(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.script = lambda method, body: problem(422, "no such field") if b'"bad"' in body else None
    run = begin(scripted)
    run.log({"bad": 1.0})
    time.sleep(1.0)  # a batch of its own
    run.log({"good": 1.0})
    run.finish()
    assert scripted.scalars() == [(1, "good", 1.0)]
    assert run.delivery.dropped == {REFUSED: 1}
    assert scripted.batches[-1].dropped == {REFUSED: 1}
    assert caplog.text.count("no such field") == 1


def test_a_server_that_lost_the_run_gets_it_again(scripted: Scripted) -> None:
    run = begin(scripted)
    assert run._pipeline is not None
    run._pipeline.declare(layers(2))
    run._pipeline.sample(sample(0))
    while run.delivery.sent < 1:
        time.sleep(0.05)
    scripted.script = first(1, problem(404, "there is no run"))
    run._pipeline.sample(sample(1))
    run.finish()
    assert len(scripted.starts) == 2
    assert scripted.starts[0] == scripted.starts[1]
    again = [batch for batch in scripted.batches if batch.model and batch.model.step.values() == [1]]
    assert [layer.index for layer in again[0].layers] == [0, 1]
    assert run.delivery.sent == 2


def test_a_run_that_is_refused_stays_in_the_spool(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.script = lambda method, body: problem(422, "version 1 is not read here")
    run = begin(scripted)
    run.log({"loss": 1.0})
    began = time.monotonic()
    run.finish()
    assert time.monotonic() - began < 3
    assert "version 1 is not read here" in caplog.text
    assert (run.delivery.spooled, run.delivery.dropped) == (1, {})


def test_data_is_sent_within_about_a_second(scripted: Scripted) -> None:
    run = begin(scripted)
    run.log({"loss": 1.0})
    began = time.monotonic()
    while not scripted.scalars() and time.monotonic() - began < 5:
        time.sleep(0.02)
    assert time.monotonic() - began < 2
    run.close()
    assert all(batch.end is None for batch in scripted.batches)


def test_a_quiet_run_is_heard_of(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundoff.delivery.sender.HEARTBEAT_S", 0.2)
    run = begin(scripted)
    time.sleep(2.0)
    assert len(scripted.batches) >= 1
    assert all(batch.model is None for batch in scripted.batches)
    run.finish()


def test_nothing_outlives_the_run(scripted: Scripted) -> None:
    run = begin(scripted)
    run.finish()
    time.sleep(0.1)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("roundoff")]


def test_finish_is_in_time_whatever_the_server_does(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundoff")
    scripted.script = lambda method, body: (time.sleep(1), problem(503))[1] if method == "POST" else None
    run = begin(scripted)
    for step in range(5000):
        run.log({"loss": 1.0}, step=step)
    began = time.monotonic()
    run.finish(timeout=2)
    assert time.monotonic() - began < 2.5
    assert (run.delivery.spooled, run.delivery.dropped) == (5000, {})
    assert "5,000 of 5,000 points wait in" in caplog.text


def test_the_token_is_sent_and_never_shown(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run = begin(scripted, token="hunter2-hunter2")
    run.finish()
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(run)
