"""A watch on several ranks: replicas are measured once, shards where they are, and nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from sharding import OPTIONS, advance, gradient, laid_out_as, model_of, shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import roundoff
from roundoff.delivery.sample import Sample
from roundoff.metrics import COUNTS, ROW, SUMS
from roundoff.optim import CollageAdamW
from roundoff.wire import Layer

Group = Callable[[int], Ranks]
STEPS = 6


class Kept:
    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.samples: list[Sample] = []

    def declare(self, layers: Sequence[Layer]) -> None:
        self.layers.extend(layers)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)


def optimizer_of(name: str, params: Any) -> torch.optim.Optimizer:
    if name == "own":
        return CollageAdamW(params, **OPTIONS)
    return torch.optim.AdamW(params, lr=3e-3, weight_decay=0.1, foreach=name == "foreach")


def figures(kept: Kept) -> dict[str, Any]:
    names = {layer.index: layer.name for layer in kept.layers}
    return {
        "placements": {layer.name: layer.placement for layer in kept.layers},
        "rows": [
            (
                one.step,
                {names[number]: row for number, row in zip(one.layers, one.sums.tolist(), strict=True)},
            )
            for one in kept.samples
        ],
        "bins": [
            one.headroom.sum(0).tolist()
            for one in kept.samples
            if one.headroom is not None  # type: ignore[attr-defined]
        ],
    }


def watched(name: str, sharded: bool) -> dict[str, Any]:
    model = model_of()
    if sharded:
        shard(model)
    optimizer = optimizer_of(name, model.parameters())
    kept = Kept()
    with roundoff.watch(model, optimizer, every=2, sink=kept):
        advance(model, optimizer, 1, STEPS)  # type: ignore[arg-type]
    return figures(kept)


@pytest.mark.parametrize("name", ["own", "AdamW", "foreach"])
def test_the_samples_of_shards_add_up_to_those_of_the_whole(ranks: Group, name: str) -> None:
    alone = watched(name, False)
    parts = ranks(2).run(watched, name, True)
    assert all(set(part["placements"].values()) == {"sharded"} for part in parts)
    assert [part["placements"].keys() for part in parts] == [alone["placements"].keys()] * 2
    for whole, *some in zip(alone["rows"], *(part["rows"] for part in parts), strict=True):
        step, layers = whole
        assert [one[0] for one in some] == [step, step]
        for layer, row in layers.items():
            together = dict(
                zip(ROW, map(sum, zip(*(one[1][layer] for one in some), strict=True)), strict=True)
            )
            expected = dict(zip(ROW, row, strict=True))
            for count in COUNTS:
                if count not in ("frozen", "frozen_of"):  # a few words of each shard
                    assert together[count] == expected[count], (step, layer, count)
            for total in SUMS:
                assert together[total] == pytest.approx(expected[total], rel=1e-5, abs=1e-12), (
                    step,
                    layer,
                    total,
                )
    for whole, *some in zip(alone["bins"], *(part["bins"] for part in parts), strict=True):
        assert [sum(one) for one in zip(*some, strict=True)] == pytest.approx(whole, rel=1e-5)


def replicated() -> dict[str, Any]:
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = Kept()
    watch = roundoff.watch(model, optimizer, every=1, sink=kept)
    for _ in range(3):
        model(torch.ones(2, 7, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.detach()
    return figures(kept)


def test_replicas_are_measured_by_one_of_them(ranks: Group) -> None:
    first, second = ranks(2).run(replicated)
    assert len(first["rows"]) == 3
    assert set(first["placements"].values()) == {"replicated"}
    assert "0.weight" in first["placements"]
    assert second == {"placements": {}, "rows": [], "bins": []}


def hybrid() -> tuple[int, dict[str, Any]]:
    """Sharded over two, and each shard on two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    whole = gradient("weight", torch.empty(6, 4, dtype=torch.bfloat16), 0)
    model = nn.Module()
    model.weight = nn.Parameter(distribute_tensor(whole, mesh, [Replicate(), Shard(0)], src_data_rank=None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = Kept()
    with roundoff.watch(model, optimizer, every=1, sink=kept):
        model.weight.grad = laid_out_as(gradient("weight", whole, 1), model.weight)
        optimizer.step()
    return dist.get_rank(), figures(kept)


def test_of_shards_that_several_hold_one_is_measured(ranks: Group) -> None:
    found = dict(ranks(4).run(hybrid))
    assert [rank for rank, one in found.items() if one["rows"]] == [0, 1]
    numel = ROW.index("numel")
    assert sum(one["rows"][0][1]["weight"][numel] for one in found.values() if one["rows"]) == 24


def by_itself() -> list[int]:
    model = shard(model_of())
    optimizer = CollageAdamW(model.parameters(), **OPTIONS)
    kept = Kept()
    with roundoff.watch(model, optimizer, sink=kept) as watch:
        steady = watch._cadence.steady  # type: ignore[attr-defined]
        advance(model, optimizer, 1, 45)
    assert steady
    return [one.step for one in kept.samples]


def test_ranks_that_hold_shards_measure_the_same_steps_whatever_their_verdicts(ranks: Group) -> None:
    first, second = ranks(2).run(by_itself)
    assert first == second == [*range(33), 40]
