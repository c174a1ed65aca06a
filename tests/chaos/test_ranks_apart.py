"""Two ranks in lockstep, one of them cut off from the server: the other does not wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs, finished, say

RANK = """
import os, time, torch
import torch.distributed as dist, roundoff
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(16, 16).bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
run = roundoff.init("chaos", "apart", server={servers}[rank])
run.watch(model, optimizer, every=1)
with open({out!r} + str(rank), "w") as out:
    for step in range({steps}):
        model.weight.grad = torch.randn(16, 16).bfloat16()
        began = time.monotonic()
        optimizer.step()
        run.log({{"loss/" + str(rank): 1.0}}, step=step)
        ready = time.monotonic()
        dist.all_reduce(torch.ones(1))
        out.write(f"{{began}} {{ready}}\\n")
        time.sleep(0.01)
run.finish(timeout=0)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("steps", [150, pytest.param(2000, marks=pytest.mark.chaos)])
def test_no_rank_waits_for_another_ones_server(
    programs: Programs, server: str, black_hole: str, steps: int
) -> None:
    path = programs.folder / "rank.py"
    out = str(programs.folder / "took")
    path.write_text(RANK.format(servers=repr([server, black_hole]), out=out, steps=steps))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finished(programs.start(*launcher, str(path)), 250)
    ranks = [read(programs.folder / f"took{rank}", steps) for rank in range(2)]
    took = [max(ready - began for began, ready in times) for times in ranks]
    # One clock for all processes.
    skew = max(abs(one - other) for (_, one), (_, other) in zip(*ranks, strict=True))
    say(
        f"longest step: {took[0] * 1e3:.1f} ms with a server, {took[1] * 1e3:.1f} ms with a black hole; the ranks were "
        f"ready for the collective at most {skew * 1e3:.1f} ms apart"
    )
    assert max(*took, skew) < 0.1


def read(path: Path, steps: int) -> list[tuple[float, float]]:
    """When each step began and when its rank was ready, without the first ones, which make state and load code."""
    times = [line.split() for line in path.read_text().splitlines()]
    assert len(times) == steps
    return [(float(began), float(ready)) for began, ready in times[5:]]
