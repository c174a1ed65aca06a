"""Into 16 bit and out of it without losing what was there."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from .adamw import CollageAdamW


def to_low_precision(
    model: nn.Module,
    dtype: torch.dtype = torch.bfloat16,
    *,
    optimizer: CollageAdamW | None = None,
    keep: Iterable[str] = (),
) -> dict[str, float]:
    """Cast a model's float32 parameters to `dtype` in place and keep what the cast drops.

    Args:
        model: its parameters stay the same objects; buffers are cast as well.
        dtype: torch.bfloat16 or torch.float16.
        optimizer: a `CollageAdamW` over the same parameters, not stepped yet. Its `lo` starts at the dropped
            residue (the leading bits of it that fit), a master at the whole value. Parameters that are not
            in it are cast alone.
        keep: name patterns (`*.norm*.weight`) of parameters and buffers to leave alone.

    Returns, per cast parameter, the norm of what the storage format dropped over the parameter's norm.
    Raises TypeError for a dtype that no strategy stores, and ValueError if the optimizer has stepped already.
    """
    from .strategies import STORAGE_DTYPES

    if dtype not in STORAGE_DTYPES:
        raise TypeError(f"to_low_precision casts to bfloat16 or float16, got {dtype}")
    if optimizer is not None and optimizer.state:
        raise ValueError("cast before the first step: this optimizer holds state in the old dtype already")
    patterns = tuple(keep)
    owned = {param for group in optimizer.param_groups for param in group["params"]} if optimizer else set()
    if optimizer is not None and owned.isdisjoint(model.parameters()):
        raise ValueError(
            "this optimizer holds none of the model's parameters; build it from model.parameters()"
        )
    dropped: dict[str, float] = {}
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dtype == torch.float32 and not _kept(name, patterns):
                exact = param.detach().clone()
                param.data = exact.to(dtype)
                rest = exact - param.detach().to(torch.float32)
                dropped[name] = float(rest.norm() / exact.norm()) if float(exact.norm()) else 0.0
                if optimizer is not None and param in owned:
                    optimizer.seed(param, exact)
        for module_name, module in model.named_modules():
            for short, buffer in module.named_buffers(recurse=False):
                full = f"{module_name}.{short}" if module_name else short
                if buffer.dtype == torch.float32 and not _kept(full, patterns):
                    setattr(module, short, buffer.to(dtype))
    return dropped


def full_precision_state_dict(model: nn.Module, optimizer: CollageAdamW) -> dict[str, Tensor]:
    """Everything that is stored of each parameter, as float32: {parameter name: tensor of its shape}.

    The master where there is one, hi + lo for a pair, else the weight itself. For export and evaluation.
    """
    return {name: optimizer.stored_value(param) for name, param in model.named_parameters()}


def _kept(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
