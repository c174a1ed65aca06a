"""FSDP2 (`fully_shard`, DTensor) on real ranks: bit-equal to one process, for every strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from sharding import BF16, OPTIONS, advance, assert_equal, everything, gradient, model_of, shard, train, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from roundoff.metrics import Sums
from roundoff.optim import STRATEGIES, CollageAdamW, full_precision_state_dict, to_low_precision

Group = Callable[[int], Ranks]
STEPS = 12


def steps_of(sharded: bool, options: dict[str, Any], wide: int = 5) -> dict[str, Tensor]:
    model = model_of(wide=wide)
    if sharded:
        shard(model)
    optimizer = CollageAdamW(model.named_parameters(), **OPTIONS, **options)
    advance(model, optimizer, 1, STEPS)
    return everything(model, optimizer)


@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_equal_one_process(ranks: Group, strategy: str, amsgrad: bool) -> None:
    options = {"strategy": strategy, "amsgrad": amsgrad}
    alone = steps_of(False, options)
    for sharded in ranks(2).run(steps_of, True, options):
        assert_equal(sharded, alone)


def test_storage_arithmetic_shards_as_well(ranks: Group) -> None:
    options = {"arithmetic": "storage"}
    assert_equal(ranks(2).run(steps_of, True, options)[0], steps_of(False, options))


def test_a_shard_longer_than_a_chunk_has_the_random_bits_of_the_whole(ranks: Group) -> None:
    options = {"strategy": "stochastic"}
    alone = steps_of(False, options, 20_001)
    assert_equal(ranks(2).run(steps_of, True, options, 20_001)[0], alone)


@pytest.mark.parametrize("strategy", ["plus", "stochastic", "exact"])
def test_a_mesh_of_one_rank_equals_one_process(ranks: Group, strategy: str) -> None:
    """Stochastic rounding or expansions on a DTensor used to need more than one rank elsewhere."""
    options = {"strategy": strategy}
    assert_equal(ranks(1).run(steps_of, True, options)[0], steps_of(False, options))


def training_of(sharded: bool, strategy: str) -> dict[str, Tensor]:
    model = model_of()
    if sharded:
        shard(model)
    optimizer = CollageAdamW(model.parameters(), **OPTIONS, strategy=strategy)
    train(model, optimizer, STEPS)
    return everything(model, optimizer)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_through_fully_shard_equals_one_process(ranks: Group, strategy: str) -> None:
    alone = training_of(False, strategy)
    for sharded in ranks(2).run(training_of, True, strategy):
        assert_equal(sharded, alone)


def one_tensor(placement: Placement | None, strategy: str) -> dict[str, Tensor]:
    whole_weight = gradient("weight", torch.empty(6, 5, 4, dtype=BF16), 0)
    grads = [gradient("weight", whole_weight, step) for step in range(1, STEPS + 1)]
    if placement is not None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        whole_weight, *grads = (
            distribute_tensor(t, mesh, [placement], src_data_rank=None) for t in (whole_weight, *grads)
        )
    model = nn.Module()
    model.weight = nn.Parameter(whole_weight)
    optimizer = CollageAdamW(model.parameters(), **OPTIONS, strategy=strategy)
    for grad in grads:
        model.weight.grad = grad
        optimizer.step()
    return everything(model, optimizer)


@pytest.mark.parametrize("placement", [Shard(1), Shard(2), Replicate()], ids=str)
@pytest.mark.parametrize("strategy", ["plus", "stochastic", "exact"])
def test_any_placement_of_a_dtensor_equals_one_process(
    ranks: Group, strategy: str, placement: Placement
) -> None:
    alone = one_tensor(None, strategy)
    for sharded in ranks(2).run(one_tensor, placement, strategy):
        assert_equal(sharded, alone)


def exported(sharded: bool, strategy: str) -> dict[str, Tensor]:
    model = model_of()
    if sharded:
        shard(model)
    optimizer = CollageAdamW(model.parameters(), **OPTIONS, strategy=strategy)
    advance(model, optimizer, 1, STEPS)
    return {name: whole(value) for name, value in full_precision_state_dict(model, optimizer).items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_full_precision_of_shards_is_that_of_the_whole(ranks: Group, strategy: str) -> None:
    alone = exported(False, strategy)
    assert all(value.dtype == torch.float32 for value in alone.values())
    for sharded in ranks(2).run(exported, True, strategy):
        assert_equal(sharded, alone)


def cast(sharded: bool, strategy: str) -> dict[str, Tensor]:
    model = model_of(torch.float32)
    if sharded:
        shard(model)
    optimizer = CollageAdamW(model.parameters(), **OPTIONS, strategy=strategy)
    to_low_precision(model, BF16, optimizer=optimizer)
    train(model, optimizer, 3)
    return everything(model, optimizer)


@pytest.mark.parametrize("strategy", ["plus", "exact", "fp32-master"])
def test_casting_a_sharded_model_keeps_what_the_cast_drops(ranks: Group, strategy: str) -> None:
    alone = cast(False, strategy)
    for sharded in ranks(2).run(cast, True, strategy):
        assert_equal(sharded, alone)


def measured(sharded: bool) -> Sums:
    model = model_of()
    if sharded:
        shard(model)
    optimizer = CollageAdamW(model.parameters(), **OPTIONS)
    advance(model, optimizer, 1, 2)
    optimizer.meters = {}
    advance(model, optimizer, 3, 3)
    return sum((meter.sums() for meter in optimizer.meters.values()), Sums())


def test_the_statistics_of_shards_add_up_to_those_of_the_whole(ranks: Group) -> None:
    first, second = ranks(2).run(measured, True)
    together, alone = first + second, measured(False)
    for name in ("numel", "attempted", "lost", "invisible", "unchanged", "decay_lost", "v_stuck", "headroom"):
        assert getattr(together, name) == getattr(alone, name), name
    assert together.sum_ua == pytest.approx(alone.sum_ua, rel=1e-12)


def with_gradients_still_to_be_added_up(whole_gradient: bool) -> dict[str, Tensor]:
    model = nn.Module()
    weight = gradient("weight", torch.empty(6, 5, dtype=BF16), 0)
    parts = [torch.full((6, 5), value, dtype=BF16) for value in (0.5, -0.125)]
    if whole_gradient:
        model.weight = nn.Parameter(weight)
        grad = parts[0] + parts[1]
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model.weight = nn.Parameter(distribute_tensor(weight, mesh, [Replicate()], src_data_rank=None))
        grad = DTensor.from_local(parts[dist.get_rank()], mesh, [Partial()])
    optimizer = CollageAdamW(model.parameters(), **OPTIONS)
    for _ in range(3):
        model.weight.grad = grad
        optimizer.step()
    return everything(model, optimizer)


def test_a_gradient_that_ranks_still_have_to_add_up_is_added_up(ranks: Group) -> None:
    """What tensor parallelism leaves on replicated parameters."""
    alone = with_gradients_still_to_be_added_up(True)
    for sharded in ranks(2).run(with_gradients_still_to_be_added_up, False):
        assert_equal(sharded, alone)
