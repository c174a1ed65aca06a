"""Optimizers of other libraries, and what a watch must find out about each of them in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from trainings import BF16

Keeps = Literal["words", "second words", "at random", "nothing known"]
"""What is to be seen: plain words that lose, second words that keep nearly all, rounding at random, or no more than
the visible change."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A class, where it is, its options, and what a watch must find."""

    module: str
    name: str
    options: dict[str, Any]
    keeps: Keeps = "words"
    matrices_only: bool = False

    def make(self, model: nn.Module) -> Optimizer:
        """Build it for a model; skips the test where its library is not installed."""
        if find_spec(self.module.split(".")[0]) is None:
            pytest.skip(f"{self.module} is not installed")
        params = [p for p in model.parameters() if p.dim() == 2 or not self.matrices_only]
        made = getattr(import_module(self.module), self.name)(params, **self.options)
        assert isinstance(made, Optimizer)
        return made


def _all(module: str, *rows: tuple[str, dict[str, Any], Keeps]) -> dict[str, Foreign]:
    short = {"torch.optim": "torch", "torchao.optim": "torchao", "bitsandbytes.optim": "bitsandbytes"}
    return {
        f"{short.get(module, module)} {name} {' '.join(map(str, list(options)[1:]))}".strip(): Foreign(
            module, name, options, keeps
        )
        for name, options, keeps in rows
    }


SLOW = 1e-4

FOREIGN: dict[str, Foreign] = {
    "torch Muon": Foreign("torch.optim", "Muon", {"lr": 1e-3}, matrices_only=True),
    **_all(
        "torch.optim",
        ("AdamW", {"lr": SLOW}, "words"),
        ("AdamW", {"lr": SLOW, "fused": True}, "words"),
        ("Adafactor", {"lr": 1e-3}, "words"),
        ("ASGD", {"lr": 1e-2}, "words"),
        ("Rprop", {"lr": 1e-3}, "words"),
        ("Adamax", {"lr": 1e-3}, "words"),
        ("SGD", {"lr": 1e-2, "momentum": 0.9}, "words"),
    ),
    **_all(
        "optimi",
        ("AdamW", {"lr": SLOW}, "second words"),
        ("AdamW", {"lr": SLOW, "kahan_sum": False}, "words"),
        ("AdamW", {"lr": SLOW, "decouple_lr": True, "weight_decay": 1e-5}, "second words"),
        ("Lion", {"lr": SLOW}, "second words"),
        ("StableAdamW", {"lr": SLOW, "triton": False}, "second words"),
        ("Adan", {"lr": SLOW, "kahan_sum": True}, "second words"),
        ("RAdam", {"lr": SLOW}, "second words"),
        ("Ranger", {"lr": SLOW}, "second words"),
        ("SGD", {"lr": 1e-2, "momentum": 0.9}, "second words"),
    ),
    **_all(
        "torchao.optim",
        ("AdamW8bit", {"lr": SLOW}, "words"),
        ("AdamW4bit", {"lr": SLOW}, "words"),
        ("AdamWFp8", {"lr": SLOW}, "words"),
        ("_AdamW", {"lr": SLOW, "bf16_stochastic_round": True}, "at random"),
    ),
    **_all(
        "pytorch_optimizer",
        ("Lion", {"lr": SLOW}, "words"),
        ("StableAdamW", {"lr": SLOW}, "second words"),
        ("ScheduleFreeAdamW", {"lr": SLOW}, "words"),
        ("AdaBelief", {"lr": SLOW}, "words"),
        ("Adan", {"lr": SLOW}, "words"),
        ("CAME", {"lr": SLOW}, "words"),
        ("SOAP", {"lr": SLOW}, "words"),
        ("Lamb", {"lr": 1e-3}, "words"),
        ("FlashAdamW", {"lr": SLOW, "quantize": False, "master_weight_bits": 32}, "second words"),
        ("FlashAdamW", {"lr": SLOW, "quantize": True, "master_weight_bits": 24}, "second words"),
        ("Prodigy", {"lr": 1.0}, "nothing known"),
    ),
    **_all(
        "heavyball",
        ("AdamW", {"lr": SLOW}, "at random"),
        ("AdamW", {"lr": SLOW, "caution": True}, "at random"),
        ("AdamW", {"lr": SLOW, "param_ecc": "bf16+16"}, "second words"),
        ("AdamW", {"lr": SLOW, "param_ecc": "bf16+8", "ecc": "bf16+16"}, "second words"),
        ("Muon", {"lr": SLOW}, "at random"),
        ("SOAP", {"lr": SLOW}, "at random"),
        ("PSGDKron", {"lr": SLOW}, "at random"),
    ),
    **_all(
        "bitsandbytes.optim",
        ("AdamW", {"lr": SLOW}, "words"),
        ("AdamW8bit", {"lr": SLOW}, "words"),
        ("Lion8bit", {"lr": SLOW}, "words"),
    ),
}


def model_of(dtype: torch.dtype = BF16) -> nn.Module:
    """Large enough for quantised states, which begin at 4096 elements."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 64)).to(dtype)


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> list[float]:
    """Some steps towards the mirrored input; the loss of each."""
    losses = []
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(16, 64).to(dtype)
        loss = (model(x) - x.flip(1)).to(torch.float32).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
