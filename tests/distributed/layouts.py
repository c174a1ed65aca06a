"""Which random bits four ranks draw for every layout of a tensor on a 2 × 2 mesh; exits with what differs.

The ranks are PyTorch's fake ones, because four real ones take long to start for what needs nothing to be sent:
each holds its part, and one process stands for each in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from roundoff.kernels import Noise
from roundoff.numerics import random_words
from roundoff.optim.shards import _first, noise_for

KEY = 0x0123456789ABCDEF
SHAPE = (7, 6, 5)
LAYOUTS: list[Sequence[Placement]] = [
    (Replicate(), Replicate()),
    (Replicate(), Shard(0)),
    (Shard(0), Replicate()),
    (Shard(0), Shard(0)),
    (Shard(0), Shard(1)),
    (Shard(1), Shard(0)),
    (Shard(2), Shard(2)),
    (_StridedShard(0, split_factor=2), Shard(0)),  # FSDP2 over tensor parallelism, rows
    (_StridedShard(1, split_factor=2), Shard(1)),  # and columns
    (_StridedShard(0, split_factor=2), Replicate()),
]


def words_of(noise: Noise, numel: int) -> Tensor:
    index = torch.arange(numel) + noise.first if noise.index is None else noise.index
    return random_words(noise.key, index)


def differing(rank: int) -> list[str]:
    """The layouts in which this rank's part does not get the bits that its elements have in the whole."""
    whole = random_words(KEY, torch.arange(7 * 6 * 5)).reshape(SHAPE)
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2))
    _first.cache_clear()  # in earnest a process is one rank
    wrong = []
    for layout in LAYOUTS:
        part: DTensor = distribute_tensor(whole, mesh, layout, src_data_rank=None)
        held = part.to_local().reshape(-1)
        if not torch.equal(words_of(noise_for(part, KEY), held.numel()), held):
            wrong.append(f"rank {rank}: {layout}")
    dist.destroy_process_group()
    return wrong


if __name__ == "__main__":
    sys.exit("\n".join(wrong for rank in range(4) for wrong in differing(rank)) or 0)
