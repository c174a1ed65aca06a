"""Of replicas the process that leads measures; of shards every process has its own to measure."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch.distributed as dist
from ranks import Ranks
from sharding import model_of, shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from roundoff.integrations.training import Start, Training, Where


def tried(sharded: bool) -> bool:
    """Whether a watch was asked for on this rank, if one can be made or not."""
    model = shard(model_of()) if sharded else DistributedDataParallel(model_of())
    training = Training(Where())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        training.begin(model, AdamW(model.parameters()), Start(0, leads=dist.get_rank() == 0))
    asked = training.watch is not None or any("is not watched" in str(one.message) for one in said)
    if training.watch is not None:
        training.watch.detach()
    return asked


@pytest.mark.parametrize(("sharded", "measuring"), [(False, [True, False]), (True, [True, True])])
def test_who_measures(ranks: Callable[[int], Ranks], sharded: bool, measuring: list[bool]) -> None:
    assert ranks(2).run(tried, sharded) == measuring
