"""Names under DataParallel, torch.compile and checkpointing are those of the user's own model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim import AdamW

import roundoff
from roundoff.watch.wrappers import own_parameters

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


class Reader(nn.Module):
    """Has an attribute that is called as DistributedDataParallel calls what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])


NAMES = ["module.weight", "module.bias", "layers.0.weight", "layers.1.weight"]


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in own_parameters(model)]


def test_names_are_the_users_own() -> None:
    assert names(Reader()) == NAMES
    assert names(nn.DataParallel(Reader())) == NAMES
    assert names(torch.compile(Reader())) == NAMES  # type: ignore[arg-type]
    assert names(torch.compile(nn.DataParallel(Reader()))) == NAMES  # type: ignore[arg-type]
    assert names(nn.DataParallel(torch.compile(Reader()))) == NAMES  # type: ignore[arg-type]


def test_names_of_wrapped_parts_are_the_users_own() -> None:
    model = Reader()
    model.layers[0] = torch.compile(model.layers[0])  # type: ignore[assignment]
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    assert "layers.0._orig_mod.weight" in dict(model.named_parameters())
    assert "layers.1._checkpoint_wrapped_module.weight" in dict(model.named_parameters())
    assert names(model) == NAMES


def test_a_watch_declares_them() -> None:
    model = nn.DataParallel(Reader())
    with roundoff.watch(model, AdamW(model.parameters())) as watching:
        assert [layer.name for layer in watching.layers] == NAMES
