"""Other processes beside the one with the run: forked, spawned, workers, ranks. One run, nothing twice, no hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arrived import only_run, points, spooled_steps, summary, sync
from programs import Programs, finished

FORKED = "calls (in a forked process)"

PROGRAM = """
import multiprocessing, os, sys, threading, time, warnings
import torch, roundoff
warnings.simplefilter("ignore")

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        if STARTED.get("run") is not None:
            STARTED["run"].log({{"worker": 1.0}})
        return torch.tensor(float(index))

STARTED = {{}}

def double(x): return 2 * x

if __name__ == "__main__":
    run = STARTED["run"] = roundoff.init("chaos", "processes", server={server!r})
    {body}
    run.log({{"loss": 1.0}}, step=0)
    run.finish()
    print(run.id)
"""

BODIES = {
    "DataLoader, fork": (
        "assert len(list(torch.utils.data.DataLoader(Data(), 8, num_workers=2, multiprocessing_context='fork'))) == 8",
        64,
    ),
    "DataLoader, spawn": (
        "assert len(list(torch.utils.data.DataLoader(Data(), 8, num_workers=2, multiprocessing_context='spawn'))) == 8",
        0,
    ),
    "DataLoader, forkserver": (
        "assert len(list(torch.utils.data.DataLoader(Data(), 8, num_workers=2, "
        "multiprocessing_context='forkserver'))) == 8",
        0,
    ),
    "Pool, fork": (
        "pool = multiprocessing.get_context('fork').Pool(3); "
        "assert pool.map(double, range(100)) == [2 * x for x in range(100)]; pool.terminate(); pool.join()",
        0,
    ),
    "Pool, spawn": (
        "pool = multiprocessing.get_context('spawn').Pool(2); assert pool.map(double, [1]) == [2]; pool.close(); "
        "pool.join()",
        0,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_workers_end_and_send_nothing(programs: Programs, server: str, name: str) -> None:
    body, forked = BODIES[name]
    path = programs.folder / "program.py"
    path.write_text(PROGRAM.format(server=server, body=body))
    process = programs.start(str(path))
    finished(process)
    run = only_run(server)
    assert points(server, run.id, 2) == {0: 1.0}
    assert (run.attempts, run.state) == (1, "finished")
    assert run.dropped == ({FORKED: forked} if forked else {})
    assert list(programs.spool.iterdir()) == []


@pytest.mark.parametrize("forks", [50, pytest.param(1000, marks=pytest.mark.chaos)])
def test_forks_while_every_lock_is_in_use(programs: Programs, server: str, forks: int) -> None:
    """Threads log without pause; children log, ask, finish and exit by every way, and none hangs."""
    program = f"""
        import os, sys, threading, warnings, roundoff
        warnings.simplefilter("ignore")
        run = roundoff.init("chaos", server={server!r})
        over = threading.Event()
        def log(name):
            step = 0
            while not over.is_set():
                run.log({{name: float(step)}}, step=step)
                run.delivery
                step += 1
                over.wait(0.0001)
        threads = [threading.Thread(target=log, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads: thread.start()
        for number in range({forks}):
            child = os.fork()
            if not child:
                run.log({{"child": 1.0}})
                run.finish()
                run.delivery
                if number % 3: os._exit(0)
                over.set()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        for thread in threads: thread.join()
        run.log({{"loss": 1.0}}, step=0)
        run.finish(timeout=60)
        assert run.delivery.queued == 0, run.delivery
    """
    finished(programs.script(program), 250)
    run = only_run(server)
    assert run.dropped == {FORKED: forks}
    assert points(server, run.id, 1) == {0: 1.0}


def test_a_child_may_have_a_run_of_its_own_and_outlive_its_parents(programs: Programs, server: str) -> None:
    program = f"""
        import os, sys, time, warnings, roundoff
        warnings.simplefilter("ignore")
        run = roundoff.init("chaos", "parent", server={server!r})
        run.log({{"loss": 1.0}}, step=0)
        child = os.fork()
        if not child:
            time.sleep(1)
            own = roundoff.init("chaos", "child", server={server!r})
            own.log({{"loss": 2.0}}, step=0)
            own.finish()
            sys.exit(0)
        run.finish()
        os.waitpid(child, 0)
    """
    finished(programs.script(program))
    import roundoff

    with roundoff.Client(server) as client:
        found = {run.name: run for run in client.runs().runs}
    assert {name: run.loss for name, run in found.items()} == {"parent": 1.0, "child": 2.0}
    assert {run.state for run in found.values()} == {"finished"}
    assert found["parent"].dropped == {}


def test_a_forked_child_does_not_keep_its_parents_spool(programs: Programs, nobody: str, server: str) -> None:
    """The parent is killed while its child lives on: sync must be able to take the spool."""
    program = f"""
        import os, signal, sys, time, warnings, roundoff
        warnings.simplefilter("ignore")
        run = roundoff.init("chaos", server={nobody!r})
        run.log({{"loss": 1.0}}, step=0)
        time.sleep(0.3)
        if not os.fork():
            os.close(0); os.close(1); os.close(2)
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    programs.script(program).communicate(timeout=60)
    assert [left.state for left in sync(programs.spool, server)] == ["sent"]


RANK = """
import os, sys, time
import torch.distributed as dist, roundoff
if {before}: dist.init_process_group("gloo")
run = roundoff.init("chaos", "ranks", server={server!r})
if not {before}: dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    run.log({{f"loss/{{rank}}": float(step)}}, step=step)
dist.barrier()
run.finish()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("world", "before"), [(2, True), (2, False), pytest.param(8, True, marks=pytest.mark.chaos)]
)
def test_torchrun_makes_one_run(programs: Programs, server: str, world: int, before: bool) -> None:
    path = programs.folder / "rank.py"
    path.write_text(RANK.format(server=server, before=before))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    finished(programs.start(*launcher, str(path)), 200)
    run = only_run(server)
    assert (run.attempts, run.state) == (1, "finished")
    for rank in range(world):
        found = points(server, run.id, 20, f"scalar:loss/{rank}")
        assert found == {step: float(step) for step in range(20)}


def test_eight_processes_start_one_run_at_once(programs: Programs, server: str) -> None:
    """Without torch, so that all of them begin within the same moment."""
    program = f"""
        import roundoff
        run = roundoff.init("chaos", server={server!r})
        for step in range(100):
            run.log({{"loss/" + str(run._identity.rank): float(step)}}, step=step)
        run.finish()
    """
    started = [
        programs.script(
            program, RANK=str(rank), WORLD_SIZE="8", TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT="0"
        )
        for rank in range(8)
    ]
    for process in started:
        finished(process)
    run = only_run(server)
    assert (run.attempts, run.state) == (1, "finished")
    for rank in range(8):
        assert len(points(server, run.id, 100, f"scalar:loss/{rank}")) == 100


def test_two_programs_on_one_spool_do_not_mix(programs: Programs, nobody: str, server: str) -> None:
    program = """
        import roundoff
        run = roundoff.init("chaos", {name!r}, server={nobody!r}, run_id={name!r})
        for step in range(3000):
            run.log({{"loss": {value}}}, step=step)
        run.finish(timeout=0)
    """
    both = [
        programs.script(program.format(name=name, value=value, nobody=nobody))
        for name, value in (("one", 1.0), ("two", 2.0), ("one", 3.0))
    ]
    for process in both:
        finished(process)
    assert len(list(spooled_steps(programs.spool))) == 9000
    assert [left.sent for left in sync(programs.spool, server)] == [3000] * 3
    assert points(server, "two", 3000) == dict.fromkeys(range(3000), 2.0)
    assert summary(server, "one").attempts == 2
    assert list(Path(programs.spool).iterdir()) == []


def test_a_notebook_kernel_that_restarts_goes_on_with_the_run(programs: Programs, server: str) -> None:
    """A restart ends the kernel by SIGTERM, or kills it; the next one is a new attempt of the same run."""
    cell = f"""
        import os, signal, sys, roundoff
        first = int(sys.argv[1])
        run = roundoff.init("chaos", server={server!r}, run_id="notebook", first_step=first)
        for step in range(first, first + 10):
            run.log({{"loss": float(step)}}, step=step)
        os.kill(os.getpid(), signal.SIGTERM if first else signal.SIGKILL)
    """
    import textwrap

    for first in (0, 8, 16):
        programs.start("-c", textwrap.dedent(cell), str(first)).communicate(timeout=60)
        sync(programs.spool)
    run: Any = only_run(server)
    assert (run.attempts, run.state) == (3, "preempted")
    found = points(server, "notebook", 26)
    assert all(found[step] == step for step in found)
    assert set(range(8, 26)) <= set(found)
