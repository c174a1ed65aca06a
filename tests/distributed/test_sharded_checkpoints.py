"""Checkpoints through `torch.distributed.checkpoint`: saved on two ranks, loaded on one and on three."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from sharding import OPTIONS, advance, assert_equal, everything, laid_out_as, model_of, shard, whole
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

from roundoff.optim import STRATEGIES, CollageAdamW

Group = Callable[[int], Ranks]
STEPS, MORE = 4, 10


def made(sharded: bool, options: dict[str, Any], seed: int = 0) -> tuple[nn.Module, CollageAdamW]:
    model = model_of(seed=seed)
    if sharded:
        shard(model)
    return model, CollageAdamW(model.parameters(), **OPTIONS, **options)


def save(folder: str, options: dict[str, Any], flat: bool = False) -> dict[str, Tensor]:
    model, optimizer = made(True, options)
    advance(model, optimizer, 1, STEPS)
    how = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, state = get_state_dict(model, optimizer, options=how)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    return everything(model, optimizer)


def load(folder: str, sharded: bool, options: dict[str, Any], flat: bool = False) -> list[dict[str, Tensor]]:
    """What is there right after the load, and ten steps later."""
    model, optimizer = made(sharded, options, seed=9)
    how = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, state = get_state_dict(model, optimizer, options=how)
    saved = {"model": weights, "optimizer": state}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"], options=how
    )
    loaded = everything(model, optimizer)
    advance(model, optimizer, STEPS + 1, STEPS + MORE)
    return [loaded, everything(model, optimizer)]


@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_saved_on_two_ranks_and_loaded_on_one_and_on_three(
    ranks: Group, strategy: str, amsgrad: bool, tmp_path: Path
) -> None:
    options = {"strategy": strategy, "amsgrad": amsgrad}
    model, optimizer = made(False, options)
    advance(model, optimizer, 1, STEPS)
    at_save = everything(model, optimizer)
    advance(model, optimizer, STEPS + 1, STEPS + MORE)
    uninterrupted = everything(model, optimizer)
    assert_equal(ranks(2).run(save, str(tmp_path), options)[0], at_save)
    for world, sharded in ((1, False), (1, True), (3, True)):
        for loaded, later in ranks(world).run(load, str(tmp_path), sharded, options):
            assert_equal(loaded, at_save)
            assert_equal(later, uninterrupted)


@pytest.mark.parametrize("strategy", ["plus", "exact"])
def test_a_flattened_state_dict_loses_nothing_either(ranks: Group, strategy: str, tmp_path: Path) -> None:
    options = {"strategy": strategy}
    at_save = ranks(2).run(save, str(tmp_path), options, True)[0]
    model, optimizer = made(False, options)
    advance(model, optimizer, 1, STEPS + MORE)
    for loaded, later in ranks(1).run(load, str(tmp_path), False, options, True):
        assert_equal(loaded, at_save)
        assert_equal(later, everything(model, optimizer))


def through_full_state_dict(options: dict[str, Any]) -> list[dict[str, Tensor]]:
    """What is there at the save, after gathering everything on each rank and loading it from there, and later."""
    model, optimizer = made(True, options)
    advance(model, optimizer, 1, STEPS)
    at_save = everything(model, optimizer)
    full = StateDictOptions(full_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=full)
    other, resumed = made(True, options, seed=9)
    set_state_dict(other, resumed, model_state_dict=weights, optim_state_dict=state, options=full)
    loaded = everything(other, resumed)
    advance(other, resumed, STEPS + 1, STEPS + MORE)
    return [at_save, loaded, everything(other, resumed)]


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "exact"])
def test_a_full_state_dict_gathers_and_scatters_every_bit(ranks: Group, strategy: str) -> None:
    """Not `exact`: neither gloo nor NCCL gathers its 16-bit integers."""
    options = {"strategy": strategy}
    model, optimizer = made(False, options)
    advance(model, optimizer, 1, STEPS + MORE)
    for at_save, loaded, later in ranks(2).run(through_full_state_dict, options):
        assert_equal(loaded, at_save)
        assert_equal(later, everything(model, optimizer))


def from_one_process(path: str, options: dict[str, Any]) -> list[dict[str, Tensor]]:
    model, optimizer = made(True, options, seed=9)
    saved = torch.load(path, weights_only=True)
    for name, param in model.named_parameters():
        with torch.no_grad():
            param.copy_(laid_out_as(saved["model"][name], param))
    optimizer.load_state_dict(saved["optimizer"])
    values = {name: whole(optimizer.stored_value(param)) for name, param in model.named_parameters()}
    return [everything(model, optimizer), values]


@pytest.mark.parametrize("target", ["exact", "plus", "fp32-master"])
@pytest.mark.parametrize("source", ["exact", "plus", "fp32-master"])
def test_a_checkpoint_of_one_process_loads_into_shards_and_converts_alike(
    ranks: Group, source: str, target: str, tmp_path: Path
) -> None:
    model, optimizer = made(False, {"strategy": source})
    advance(model, optimizer, 1, STEPS)
    path = str(tmp_path / "whole.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    alone = CollageAdamW(model.parameters(), **OPTIONS, strategy=target)
    alone.load_state_dict(optimizer.state_dict())
    for state, values in ranks(2).run(from_one_process, path, {"strategy": target}):
        assert_equal(state, everything(model, alone))
        for name, param in model.named_parameters():
            assert torch.equal(values[name], alone.stored_value(param)), name


def converted(sharded: bool, source: str, target: str) -> dict[str, Tensor]:
    model, optimizer = made(sharded, {"strategy": source})
    advance(model, optimizer, 1, STEPS)
    other = CollageAdamW(model.parameters(), **OPTIONS, strategy=target)
    other.load_state_dict(optimizer.state_dict())
    advance(model, other, STEPS + 1, STEPS + 2)
    return everything(model, other)


@pytest.mark.parametrize(
    ("source", "target"), [("fp32-master", "exact"), ("exact", "plus"), ("plus", "exact")]
)
def test_shards_change_their_strategy_as_the_whole_does(ranks: Group, source: str, target: str) -> None:
    alone = converted(False, source, target)
    for sharded in ranks(2).run(converted, True, source, target):
        assert_equal(sharded, alone)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_asking_for_the_state_before_the_first_step_leaves_the_weights(strategy: str) -> None:
    """PyTorch then takes a step with zero gradients and lr = 0, so that there is a state to speak of."""
    model, optimizer = made(False, {"strategy": strategy})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = get_optimizer_state_dict(model, optimizer)["state"]
    assert set(state) == set(before)
    for name, param in model.named_parameters():
        assert torch.equal(param, before[name]), name
        assert torch.equal(optimizer.stored_value(param), before[name].to(torch.float32)), name
