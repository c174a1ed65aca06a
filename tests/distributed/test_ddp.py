"""DistributedDataParallel: replicas stay bit-equal, and equal to one process with the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ranks import Ranks
from sharding import BF16, OPTIONS, assert_equal, everything, model_of, train
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from roundoff.metrics import Sums
from roundoff.optim import STRATEGIES, CollageAdamW

Group = Callable[[int], Ranks]


def training_of(replicated: bool, strategy: str) -> dict[str, Tensor]:
    model = model_of()
    replica = DistributedDataParallel(model) if replicated else model
    optimizer = CollageAdamW(replica.named_parameters(), **OPTIONS, strategy=strategy)
    train(replica, optimizer, 12)
    return everything(model, optimizer)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_replicas_equal_one_process(ranks: Group, strategy: str) -> None:
    alone = training_of(False, strategy)
    for replica in ranks(2).run(training_of, True, strategy):
        assert_equal(replica, alone)


def on_own_data(strategy: str) -> tuple[dict[str, Tensor], Sums]:
    """Each rank sees another batch; DDP averages the gradients."""
    model = model_of()
    replica = DistributedDataParallel(model)
    optimizer = CollageAdamW(replica.parameters(), **OPTIONS, strategy=strategy)
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    for _ in range(6):
        optimizer.meters = {}
        optimizer.zero_grad()
        replica(torch.randn(4, 7, generator=generator).to(BF16)).square().mean().backward()
        optimizer.step()
    return everything(model, optimizer), sum((m.sums() for m in optimizer.meters.values()), Sums())


@pytest.mark.parametrize("strategy", ["plus", "stochastic"])
def test_replicas_on_different_data_stay_bit_equal(ranks: Group, strategy: str) -> None:
    (first, one), (second, two) = ranks(2).run(on_own_data, strategy)
    assert_equal(first, second)
    assert one == two
