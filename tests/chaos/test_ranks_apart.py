"""Two ranks in lockstep, one of them cut off from the server: the other does not wait for it."""

from __future__ import annotations

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
        out.write(f"{{time.monotonic() - began}}\\n")
        dist.all_reduce(torch.ones(1))
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
    worst = {}
    for rank in range(2):
        took = [float(line) for line in (programs.folder / f"took{rank}").read_text().split()]
        assert len(took) == steps
        worst[rank] = max(took[5:])  # the first steps make the optimizer's state and load code
    say(f"longest step: {worst[0] * 1e3:.1f} ms with a server, {worst[1] * 1e3:.1f} ms with a black hole")
    assert max(worst.values()) < 0.1
