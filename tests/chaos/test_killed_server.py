"""The server is killed at random moments under load: what it has acknowledged is there, and it is back at once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import load
import pytest
from arrived import points
from programs import say

import roundoff

RUNS = 6


class Sender(threading.Thread):
    """Sends the batches of one run, one again and again until it is acknowledged, and counts those that are."""

    def __init__(self, url: str, run_id: str, ended: threading.Event) -> None:
        super().__init__()
        self.run_id, self.acknowledged = run_id, 0
        self.refused: list[str] = []
        self._url, self._ended = url, ended

    def run(self) -> None:
        with httpx.Client(base_url=f"{self._url}/api/v1/", timeout=10, trust_env=False) as http:
            started = False
            while not self._ended.is_set():
                try:
                    if not started:
                        load.start(http, self.run_id)
                        started = True
                    self._heard(load.send(http, self.run_id, self.acknowledged))
                except httpx.TransportError:
                    self._ended.wait(0.05)

    def _heard(self, answer: httpx.Response) -> None:
        if answer.is_success:
            self.acknowledged += 1
        else:
            self.refused.append(f"{answer.status_code} {answer.text}")


@pytest.mark.parametrize(
    ("kills", "bar_s"),
    [(3, 30.0), pytest.param(30, 5.0, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])],
)
def test_what_was_acknowledged_is_there(mortal: Any, database_url: str, kills: int, bar_s: float) -> None:
    """`bar_s` is what it must be back within; other tests may run beside the short form."""
    chosen, ended, back = random.Random(0), threading.Event(), []
    senders = [Sender(mortal.url, f"run{number}", ended) for number in range(RUNS)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(kills):
            time.sleep(chosen.uniform(0.1, 2.0))
            mortal.kill()
            before = {sender.run_id: sender.acknowledged for sender in senders}
            killed = time.monotonic()
            mortal.up()
            back.append(time.monotonic() - killed)
            for run_id, number in before.items():
                steps = load.STEPS * number
                assert len(points(mortal.url, run_id, steps)) >= steps, run_id
    finally:
        ended.set()
        for sender in senders:
            sender.join()
    kept = sum(load.STEPS * sender.acknowledged for sender in senders)
    say(
        f"{kills} kills, {kept * load.LAYERS:,} acknowledged layer samples, "
        f"back after {max(back):.1f} s at most"
    )
    for sender in senders:
        assert sender.refused == []
        expected = load.STEPS * sender.acknowledged
        found = points(mortal.url, sender.run_id, expected + load.STEPS)
        assert {step: found.get(step) for step in range(expected)} == {
            step: load.loss(step) for step in range(expected)
        }
        assert len(found) in (expected, expected + load.STEPS), "the last one may be there without an answer"
        assert len(points(mortal.url, sender.run_id, len(found), "update_norm")) == len(found)
        with roundoff.Client(mortal.url) as client:
            rows = b"".join(client.export(sender.run_id, "ndjson")).count(b"\n")
        assert rows == len(found) * load.LAYERS
    assert max(back) < bar_s
    mortal.down()
    assert checked(database_url) == (0, "")


def checked(database_url: str) -> tuple[int, Any]:
    """What `roundoff db check` says of faults."""
    command = [sys.executable, "-m", "roundoff", "db", "check", "--database", database_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr
