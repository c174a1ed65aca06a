"""One rank of a process group: `python sharded_steps.py RANK WORLD STORE OUT` steps DTensors and saves every bit."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from roundoff.optim import CollageAdamW

STEPS = 8
STRATEGIES = ("stochastic", "plus")


def stepped(strategy: str, *, sharded: bool) -> dict[str, torch.Tensor]:
    """What is kept of eleven rows of weights after some steps, whole and as integers."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(11, 5, generator=generator).to(torch.bfloat16)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if sharded else None

    def laid_out(whole: torch.Tensor) -> torch.Tensor:
        return whole if mesh is None else distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)

    w = nn.Parameter(laid_out(start))
    optimizer = CollageAdamW([("w", w)], lr=1e-4, weight_decay=0.1, strategy=strategy, seed=3)
    for _ in range(STEPS):
        w.grad = laid_out(torch.randn(11, 5, generator=generator).to(torch.bfloat16))
        optimizer.step()
    kept = {"w": w.detach(), **optimizer.state[w]}
    whole = {
        name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in kept.items()
    }
    return {f"{strategy}/{name}": value.clone() for name, value in whole.items()}


def main(rank: int, world: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    found: dict[str, torch.Tensor] = {}
    for strategy in STRATEGIES:
        found |= stepped(strategy, sharded=True)
    torch.save(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
