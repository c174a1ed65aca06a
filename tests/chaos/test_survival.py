"""How programs end, and what becomes of the last thing they logged: the table in docs/safety.md, row by row."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from arrived import only_run, points, summary, sync
from programs import Programs, eventually

BEGIN = """
import os, signal, sys, time, roundoff
run = roundoff.init("chaos", "survival", server={server!r})
run.log({{"loss": 1.0}}, step=0)
"""

ENDINGS: dict[str, tuple[str, int, str]] = {
    "finish": ("run.finish()", 0, "finished"),
    "the end of the script": ("", 0, "finished"),
    "sys.exit": ("sys.exit(0)", 0, "finished"),
    "exception": ("raise RuntimeError('the training fails')", 1, "crashed"),
    "with block": ("with run: raise RuntimeError('the training fails')", 1, "crashed"),
    "close": ("run.close()", 0, "running"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -15, "preempted"),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -2, "crashed"),
    "os._exit": ("time.sleep(0.2); os._exit(4)", 4, "running"),
    "SIGKILL": ("time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)", -9, "running"),
    "out of memory": ("time.sleep(0.2); os.abort()", -6, "running"),
}
"""What ends it, its exit status, and the run's state; in the last three the process has no say, and the promise of
60 s has not run out yet."""


@pytest.mark.parametrize("name", ENDINGS)
def test_what_was_logged_arrives_however_the_program_ends(programs: Programs, server: str, name: str) -> None:
    ending, code, state = ENDINGS[name]
    process = programs.script(BEGIN.format(server=server) + ending)
    process.communicate(timeout=60)
    assert process.returncode == code
    sync(programs.spool)
    run = only_run(server)
    assert points(server, run.id, 1) == {0: 1.0}
    assert run.state == state
    assert list(programs.spool.iterdir()) == []


@pytest.mark.parametrize("name", ENDINGS)
def test_and_without_a_server_it_waits_in_the_spool(
    programs: Programs, nobody: str, start_server: Any, tmp_path: Path, name: str
) -> None:
    ending, code, state = ENDINGS[name]
    process = programs.script(
        BEGIN.format(server=nobody) + ending.replace("run.finish()", "run.finish(timeout=0)")
    )
    process.communicate(timeout=60)
    assert process.returncode == code
    with start_server(f"sqlite:///{tmp_path / 'later.db'}") as running:
        assert [left.state for left in sync(programs.spool, running.url)] == ["sent"]
        run = only_run(running.url)
        assert points(running.url, run.id, 1) == {0: 1.0}
        assert run.state == state


TRAINING = """
import signal, sys, time, roundoff
{before}
run = roundoff.init("chaos", "survival", server={server!r})
print(run.id, flush=True)
step = 0
{around}
    for step in range(100_000):
        run.log({{"loss": float(step)}}, step=step)
        time.sleep(0.01)
{after}
"""


def started(
    programs: Programs, server: str, before: str = "", around: str = "if True:", after: str = ""
) -> Any:
    process = programs.script(TRAINING.format(server=server, before=before, around=around, after=after))
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    time.sleep(0.5)
    return process, run_id


def state_after(server: str, run_id: str, state: str, seconds: float) -> float:
    """How long it took until the server said so."""
    began = time.monotonic()
    eventually(lambda: summary(server, run_id).state == state, seconds)
    return time.monotonic() - began


def test_sigterm_marks_the_run_within_a_second_and_ends_the_program_as_ever(
    programs: Programs, server: str
) -> None:
    process, run_id = started(programs, server)
    process.send_signal(signal.SIGTERM)
    assert state_after(server, run_id, "preempted", 5) < 1
    assert process.wait(5) == -signal.SIGTERM


def test_sigterm_with_a_server_that_hangs_ends_within_seconds(programs: Programs, black_hole: str) -> None:
    process, _ = started(programs, black_hole)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    assert time.monotonic() - began < 2


def test_sigterm_goes_to_the_programs_own_handler_which_may_take_its_time(
    programs: Programs, server: str
) -> None:
    before = """
stop = []
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
"""
    after = """
        if stop:
            time.sleep(1.5)   # a checkpoint
            run.log({"saved": 1.0}, step=step)
            break
run.finish()
assert signal.getsignal(signal.SIGTERM).__name__ == "<lambda>"
"""
    process, run_id = started(programs, server, before, after=after)
    process.send_signal(signal.SIGTERM)
    assert state_after(server, run_id, "preempted", 5) < 1
    assert process.wait(20) == 0
    assert summary(server, run_id).state == "preempted"
    assert len(points(server, run_id, 100_000, "scalar:saved")) == 1


def test_a_handler_that_logs_where_it_was_interrupted_does_not_hang(programs: Programs, server: str) -> None:
    program = f"""
        import os, signal, roundoff
        run = roundoff.init("chaos", server={server!r})
        def handler(number, frame):
            run.log({{"signals": 1.0}})
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0002)
        for step in range(20_000):
            run.log({{"loss": 1.0}})
        signal.setitimer(signal.ITIMER_REAL, 0)
        run.finish()
        assert run.delivery.sent == run.delivery.taken, run.delivery
        print(run.delivery.taken)
    """
    process = programs.script(program)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert int(out) > 20_000


def test_sigint_is_a_keyboard_interrupt_and_a_second_one_does_not_wait(
    programs: Programs, black_hole: str
) -> None:
    process, _ = started(programs, black_hole, around="with run:")
    process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    assert process.poll() is None  # it would wait for the server
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert process.returncode == -signal.SIGINT
    assert "send them with `roundoff sync`" in errors


def test_a_handler_set_by_others_stays_and_ours_goes(programs: Programs, server: str) -> None:
    program = f"""
        import signal, roundoff
        before = signal.getsignal(signal.SIGTERM)
        one, two = (roundoff.init("chaos", server={server!r}) for _ in range(2))
        ours = signal.getsignal(signal.SIGTERM)
        assert ours is not before
        one.finish()
        assert signal.getsignal(signal.SIGTERM) == ours
        two.finish()
        assert signal.getsignal(signal.SIGTERM) is before
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with roundoff.init("chaos", server={server!r}):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    """
    process = programs.script(program)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_a_killed_run_is_stale_and_a_restart_heals_it(programs: Programs, server: str) -> None:
    """Also: what was promised is kept to. The server waits longer for a run that said so."""
    begin = f"""
import os, sys, time, roundoff, roundoff.delivery.sender, roundoff.run
roundoff.run.RunStart.model_fields["promise_s"].default = 1.0
roundoff.run.RunStart.model_rebuild(force=True)
roundoff.delivery.sender.HEARTBEAT_S = 0.3
run = roundoff.init("chaos", server={server!r}, run_id="silent")
run.log({{"loss": 1.0}})
"""
    process = programs.script(begin + "time.sleep(3); print(); sys.stdout.flush(); time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    assert summary(server, "silent").state == "running"  # it was heard of although nothing was logged
    os.kill(process.pid, signal.SIGSTOP)
    state_after(server, "silent", "stale", 10)
    os.kill(process.pid, signal.SIGCONT)
    state_after(server, "silent", "running", 10)
    process.kill()
    process.wait()
    state_after(server, "silent", "stale", 10)
    patient = programs.script(
        begin + "run.expect_pause(30); time.sleep(1); print(); sys.stdout.flush(); time.sleep(60)"
    )
    assert patient.stdout is not None
    patient.stdout.readline()
    os.kill(patient.pid, signal.SIGSTOP)
    time.sleep(2.5)
    assert summary(server, "silent").state == "running"
    os.kill(patient.pid, signal.SIGCONT)
    assert subprocess.Popen.poll(patient) is None
