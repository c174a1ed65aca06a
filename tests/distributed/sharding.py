"""A small model, whole or sharded, with given gradients: what the ranks run, and what one process runs."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from roundoff.optim import CollageAdamW

BF16 = torch.bfloat16
OPTIONS: dict[str, Any] = {"lr": 3e-3, "weight_decay": 0.1, "seed": 5}

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def model_of(dtype: torch.dtype = BF16, *, wide: int = 5, seed: int = 0) -> nn.Module:
    """Its rows divide neither by two nor by three, and one bias has a single element: some shards are empty."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(7, wide), nn.LayerNorm(wide), nn.Linear(wide, 3), nn.Linear(3, 1))
    return layers.to(dtype)


def shard(model: nn.Module) -> nn.Module:
    """FSDP2 over all ranks, the first layer in a group of its own."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)  # type: ignore[index]
    fully_shard(model, mesh=mesh)
    return model


def gradient(name: str, like: Tensor, step: int) -> Tensor:
    """The gradient of a parameter at a step, whole, the same on every rank."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step}".encode()))
    return torch.randn(like.shape, generator=generator).to(like.dtype)


def laid_out_as(whole: Tensor, param: Tensor) -> Tensor:
    """A tensor that every rank has whole, sharded as a parameter is."""
    if not isinstance(param, DTensor):
        return whole
    return distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)


def advance(model: nn.Module, optimizer: CollageAdamW, first: int, last: int) -> None:
    """Steps number `first` to `last` with the gradients of `gradient`."""
    for step in range(first, last + 1):
        for name, param in model.named_parameters():
            param.grad = laid_out_as(gradient(name, param, step), param)
        optimizer.step()
        optimizer.zero_grad()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps with the gradients of a loss on one batch, the same on every rank."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x = torch.randn(4, 7, generator=generator).to(BF16)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def everything(model: nn.Module, optimizer: CollageAdamW) -> dict[str, Tensor]:
    """Every bit that is kept, whole, as integers: weights by name, state by `name/word`."""
    kept = {}
    for name, param in model.named_parameters():
        kept[name] = param.detach()
        for word, value in optimizer.state[param].items():
            kept[f"{name}/{word}"] = value
    return {name: _bits(whole(value)) for name, value in kept.items()}


def whole(value: Tensor) -> Tensor:
    """A tensor with its shards put together, the same on every rank."""
    if not isinstance(value, DTensor):
        return value
    if value.dtype == torch.int16:  # neither gloo nor NCCL sends these
        return value.to(torch.int32).full_tensor().to(torch.int16)
    return value.full_tensor()


def assert_equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    """The same names, dtypes and bits."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == two[name].dtype, name
        assert torch.equal(value, two[name]), name


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().view(_BITS[value.element_size()]).clone()
