"""SIGKILL at random moments: nothing acknowledged is missing, and what is lost was handed over just before."""

from __future__ import annotations

import random
import signal
import time

import pytest
from arrived import only_run, points, spooled_steps, sync
from programs import Programs, eventually, say

LAST_S = 0.2
"""What docs/safety.md promises: nothing that was handed over longer ago than this is lost with the process."""


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.chaos)])
def test_a_kill_costs_at_most_the_last_fifth_of_a_second(programs: Programs, server: str, kills: int) -> None:
    """One run of many attempts, each killed at a random moment, on a server that answers."""
    chosen = random.Random(0)
    first, worst = 0, 0.0
    kept: dict[int, float] = {}
    for number in range(kills):
        out = f"out{number}"
        flags = ("--server", server, "--run-id", "killed", "--first-step", str(first), "--steps", "100000")
        process = programs.train(out, *flags, "--pace", "0.001")
        eventually(lambda out=out: len(programs.trained(out)) > 5, 60)  # type: ignore[misc]
        time.sleep(chosen.uniform(0, 1.5))
        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
        process.wait()
        acknowledged = set(points(server, "killed", 100_000))
        on_disk = set(spooled_steps(programs.spool))  # readable as it was left
        left = sync(programs.spool)
        assert [one.state for one in left] == ["sent"]
        assert left[0].dropped == {}
        handed = programs.trained(out)
        now = set(points(server, "killed", 100_000))
        assert acknowledged <= now
        assert on_disk <= now
        missing = [at for step, (_, at) in handed.items() if step not in now]
        worst = max([worst, *(killed - at for at in missing)])
        kept.update({step: loss for step, (loss, _) in handed.items() if step in now})
        first = max(now) + 1
    assert worst < LAST_S
    say(f"{kills} kills, {len(kept)} values, the oldest that was lost was {1e3 * worst:.0f} ms old")
    assert only_run(server).attempts == kills
    assert points(server, "killed", 100_000) == kept
