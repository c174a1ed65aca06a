"""The optimizers that are watched, one line each: the library, the class, its options, and a label."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

SLOW = 1e-4
"""Learning rate of those whose updates are about as long as it."""

FAST = 1e-2
"""Of those whose updates are about as long as its product with the gradient."""

DISTRIBUTIONS = {
    "torch": "torch",
    "roundoff": "roundoff",
    "optimi": "torch-optimi",
    "torchao": "torchao",
    "heavyball": "heavyball",
    "pytorch_optimizer": "pytorch-optimizer",
    "bitsandbytes": "bitsandbytes",
}
"""What a library is called where it is installed from."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A class in a module, how it is made, and what it is called in the table."""

    module: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    matrices_only: bool = False

    @property
    def library(self) -> str:
        """The package that it comes from."""
        return self.module.split(".")[0]

    @property
    def label(self) -> str:
        """Library, class and what is special about it."""
        return f"{self.library} {self.name}{self.note and f', {self.note}'}"

    @property
    def available(self) -> bool:
        """Whether its library is installed."""
        return find_spec(self.library) is not None

    def make(self, model: nn.Module) -> Optimizer:
        """Build it for a model."""
        params = [p for p in model.parameters() if p.dim() == 2 or not self.matrices_only]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = getattr(import_module(self.module), self.name)(params, **self.options)
        assert isinstance(made, Optimizer)
        return made


def _of(module: str, *rows: tuple[str, dict[str, Any], str]) -> list[Contender]:
    return [Contender(module, name, options, note) for name, options, note in rows]


CONTENDERS: tuple[Contender, ...] = (
    *_of(
        "torch.optim",
        ("AdamW", {"lr": SLOW, "foreach": False}, "loop"),
        ("AdamW", {"lr": SLOW, "foreach": True}, "foreach"),
        ("AdamW", {"lr": SLOW, "fused": True}, "fused"),
        ("Adam", {"lr": SLOW, "amsgrad": True}, "amsgrad"),
        ("NAdam", {"lr": SLOW}, ""),
        ("RMSprop", {"lr": SLOW}, ""),
        ("Adafactor", {"lr": 1e-3}, ""),
        ("SGD", {"lr": FAST}, ""),
        ("SGD", {"lr": FAST, "momentum": 0.9}, "momentum"),
    ),
    Contender("torch.optim", "Muon", {"lr": 1e-3}, "matrices", matrices_only=True),
    *_of("torch.optim", ("LBFGS", {"lr": 1e-3, "max_iter": 2}, "")),
    *_of(
        "optimi",
        ("AdamW", {"lr": SLOW}, "Kahan"),
        ("AdamW", {"lr": SLOW, "kahan_sum": False}, ""),
        ("StableAdamW", {"lr": SLOW, "triton": False}, "Kahan"),
        ("Lion", {"lr": SLOW}, "Kahan"),
    ),
    *_of(
        "torchao.optim",
        ("AdamW8bit", {"lr": SLOW}, ""),
        ("AdamW4bit", {"lr": SLOW}, ""),
        ("_AdamW", {"lr": SLOW, "bf16_stochastic_round": True}, "stochastic rounding"),
    ),
    *_of(
        "heavyball",
        ("AdamW", {"lr": SLOW}, "stochastic rounding"),
        ("AdamW", {"lr": SLOW, "param_ecc": "bf16+16"}, "param_ecc bf16+16"),
        ("Muon", {"lr": SLOW}, "stochastic rounding"),
        ("SOAP", {"lr": SLOW}, "stochastic rounding"),
    ),
    *_of(
        "pytorch_optimizer",
        ("Lion", {"lr": SLOW}, ""),
        ("StableAdamW", {"lr": SLOW}, "Kahan"),
        ("ScheduleFreeAdamW", {"lr": SLOW}, ""),
        ("Lamb", {"lr": 1e-3}, ""),
        ("SOAP", {"lr": SLOW}, ""),
        ("Shampoo", {"lr": SLOW}, ""),
        ("FlashAdamW", {"lr": SLOW, "quantize": False, "master_weight_bits": 32}, "master of 32 bit"),
        ("Prodigy", {"lr": 1.0}, ""),
    ),
    *_of(
        "bitsandbytes.optim",
        ("AdamW", {"lr": SLOW}, ""),
        ("AdamW8bit", {"lr": SLOW}, ""),
        ("Lion8bit", {"lr": SLOW}, ""),
    ),
    *_of(
        "roundoff",
        ("CollageAdamW", {"lr": SLOW, "strategy": "none"}, "none"),
        ("CollageAdamW", {"lr": SLOW, "strategy": "plus"}, "plus"),
    ),
)


def versions() -> list[str]:
    """The installed libraries, as `name version`."""
    return [f"{name} {version(name)}" for module, name in DISTRIBUTIONS.items() if find_spec(module)]


@contextmanager
def as_written() -> Iterator[None]:
    """heavyball's and torchao's steps as they are written: compiling them takes minutes and changes no rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if find_spec("heavyball") is None:
            yield
            return
        import heavyball.utils

        before, heavyball.utils.compile_mode = heavyball.utils.compile_mode, None
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            heavyball.utils.compile_mode = before
