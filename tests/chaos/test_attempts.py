"""Crashes and restarts: attempts of one run, nothing dropped, one line over steps that only goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arrived import points, summary, sync
from programs import Programs, finished

import roundoff

ATTEMPT = """
import json, os, pathlib, signal, sys, time, roundoff
first_step, last, value = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
checkpoint = pathlib.Path({checkpoint!r})
saved = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
run = roundoff.init("chaos", "attempts", {{"attempt": value}}, server={server!r}, resume=saved)
begin = saved["step"] if saved else 0
assert begin == first_step, (begin, first_step)
for step in range(begin, last):
    run.log({{"loss": value}}, step=step)
    if step % 50 == 49:
        checkpoint.write_text(json.dumps(run.state_dict()))
time.sleep(0.3)
{end}
"""

KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def attempt(programs: Programs, server: str, first: int, last: int, value: float, end: str) -> int:
    text = ATTEMPT.format(server=server, checkpoint=str(programs.folder / "checkpoint.json"), end=end)
    process = programs.start("-c", text, str(first), str(last), str(value))
    _, errors = process.communicate(timeout=60)
    assert "Error" not in errors.replace("RuntimeError: as planned", ""), errors
    return process.returncode


@pytest.mark.parametrize("reachable", [True, False])
def test_three_preemptions_with_overlap(
    programs: Programs, server: str, nobody: str, start_server: Any, tmp_path: Path, reachable: bool
) -> None:
    """Killed at 212, 187 and 262, each time resumed from the checkpoint before; in the end all of it is one line."""
    address = server if reachable else nobody
    assert attempt(programs, address, 0, 212, 1.0, KILL) == -9
    assert attempt(programs, address, 200, 240, 2.0, "os.kill(os.getpid(), signal.SIGTERM)") == -15
    assert attempt(programs, address, 200, 262, 3.0, KILL) == -9
    assert attempt(programs, address, 250, 300, 4.0, "run.finish()") == 0
    assert {left.state for left in sync(programs.spool, server)} <= {"sent"}
    with roundoff.Client(server) as client:
        (run,) = client.runs().runs
    assert (run.attempts, run.state) == (4, "finished")
    found = points(server, run.id, 300)
    assert [found[step] for step in (0, 199, 200, 249, 250, 299)] == [1.0, 1.0, 3.0, 3.0, 4.0, 4.0]
    assert list(found) == list(range(300))


def test_the_last_attempt_comes_first_and_the_others_later(
    programs: Programs, nobody: str, server: str
) -> None:
    """Two attempts without a server, the third with one: what the first two left does not hide the third."""
    assert attempt(programs, nobody, 0, 112, 1.0, KILL) == -9
    assert attempt(programs, nobody, 100, 170, 2.0, KILL) == -9
    assert attempt(programs, server, 150, 200, 3.0, "run.finish()") == 0
    with roundoff.Client(server) as client:
        (run,) = client.runs().runs
    assert (run.attempts, run.state) == (3, "finished")
    sync(programs.spool, server)
    found = points(server, run.id, 200)
    assert found == {step: 1.0 if step < 100 else 2.0 if step < 150 else 3.0 for step in range(200)}
    assert (summary(server, run.id).state, summary(server, run.id).step) == ("finished", 199)


def test_resume_comes_after_what_is_said_by_hand(scripted_state: dict[str, Any], monkeypatch: Any) -> None:
    state = scripted_state
    assert roundoff.init(mode="disabled", resume=state).id == state["run_id"]
    assert roundoff.init(mode="disabled", resume=None).id != state["run_id"]
    assert roundoff.init(mode="disabled", resume=state, run_id="mine").id == "mine"
    monkeypatch.setenv("ROUNDOFF_RUN_ID", "environment")
    assert roundoff.init(mode="disabled", resume=state).id == "environment"
    monkeypatch.delenv("ROUNDOFF_RUN_ID")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    again = roundoff.init(mode="disabled", resume=state)
    assert (again.id, again.state_dict()) == (state["run_id"], state)
    assert roundoff.init(mode="disabled", resume=state, first_step=3).state_dict()["step"] == 3


@pytest.fixture
def scripted_state(tmp_path: Path) -> dict[str, Any]:
    run = roundoff.init(mode="offline", spool=tmp_path)
    run.log({"loss": 1.0}, step=41)
    state = run.state_dict()
    run.finish()
    assert state == {"run_id": run.id, "step": 42}
    return state


def test_torchrun_restarts_are_attempts(programs: Programs, server: str) -> None:
    program = """
        import os, sys, roundoff
        restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        run = roundoff.init("chaos", server={server!r}, first_step=10 * restart)
        for step in range(10 * restart, 10 * restart + 15):
            run.log({{"loss": float(restart)}}, step=step)
        run.finish()
    """
    for restart in range(3):
        for rank in range(2):
            environment = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": str(restart)}
            finished(
                programs.script(program.format(server=server), RANK=str(rank), WORLD_SIZE="2", **environment)
            )
    with roundoff.Client(server) as client:
        (run,) = client.runs().runs
    assert run.attempts == 3
    found = points(server, run.id, 40)
    assert list(found) == list(range(35))
    assert [found[step] for step in (9, 10, 19, 20, 34)] == [0.0, 1.0, 1.0, 2.0, 2.0]
