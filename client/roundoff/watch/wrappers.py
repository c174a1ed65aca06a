"""What wrappers put around a user's model and optimizer, taken off: the names and the steps are the user's own."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

_PASS_THROUGH = {
    ("accelerate", "AcceleratedOptimizer"),
    ("lightning", "LightningOptimizer"),
    ("pytorch_lightning", "LightningOptimizer"),
    ("lightning", "_FabricOptimizer"),
    ("lightning_fabric", "_FabricOptimizer"),
}
"""Package and class of wrappers whose `step` is that of their `.optimizer` and nothing else."""

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile, FSDP and activation checkpointing call the module that they wrap, at any depth."""


def own_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer that really steps: taken out of Accelerate's and Lightning's wrappers, and of no others."""
    while any(
        (base.__module__.split(".")[0], base.__name__) in _PASS_THROUGH for base in type(optimizer).__mro__
    ):
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return optimizer


def own_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and parameter, each once, under the name that it has in the model before any wrapper was put on.

    `module.` is taken out where DistributedDataParallel or DataParallel put it, not where a user's own attribute
    has that name.
    """
    replicas = {
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel)
    }
    for name, param in model.named_parameters():
        yield _own_name(name, replicas), param


def _own_name(name: str, replicas: set[str]) -> str:
    parts = name.split(".")
    kept = [
        part
        for place, part in enumerate(parts)
        if part not in _WRAPPED and not (part == "module" and ".".join(parts[:place]) in replicas)
    ]
    return ".".join(kept)
