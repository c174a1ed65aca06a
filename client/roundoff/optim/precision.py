"""Into 16 bit and out of it without losing what was there."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from .adamw import CollageAdamW
from .shards import is_sharded


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
    from .strategies import FLOAT8_DTYPES, STORAGE_DTYPES

    if dtype not in STORAGE_DTYPES:
        # Hardly a layer of PyTorch computes in float8, so whose weights they are has to be said.
        way = "; for float8 give weights one by one to CollageAdamW.seed (docs/float8.md)"
        raise TypeError(
            f"to_low_precision casts to bfloat16 or float16, got {dtype}{way if dtype in FLOAT8_DTYPES else ''}"
        )
    if optimizer is not None and optimizer.state:
        raise ValueError("cast before the first step: this optimizer holds state in the old dtype already")
    patterns = tuple(keep)
    owned = {param for group in optimizer.param_groups for param in group["params"]} if optimizer else set()
    if optimizer is not None and owned.isdisjoint(model.parameters()):
        raise ValueError(
            "this optimizer holds none of the model's parameters; build it from model.parameters()"
        )
    names = {tensor: name for name, tensor in (*model.named_buffers(), *model.named_parameters())}
    kept = {tensor for tensor, name in names.items() if _kept(name, patterns)}
    dropped: dict[str, float] = {}
    with torch.no_grad():
        # Children first: what shards a module looks at its parameters again once its own turn is over.
        for module in reversed(list(model.modules())):
            for param, exact in _cast(module, dtype, kept):
                dropped[names[param]] = _share_dropped(param, exact)
                if optimizer is not None and param in owned:
                    optimizer.seed(param, exact)
    return {name: dropped[name] for name in names.values() if name in dropped}


def _cast(module: nn.Module, dtype: torch.dtype, kept: set[Tensor]) -> list[tuple[nn.Parameter, Tensor]]:
    """Cast a module's own float32 tensors; returns the parameters among them with what they were before."""
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    casting = {tensor for tensor in own if tensor.dtype == torch.float32 and tensor not in kept}
    before = [(p, p.detach().clone()) for p in module.parameters(recurse=False) if p in casting]
    # As `Module.to` does it: sharded parameters cannot be cast through `.data`, and RNNs flatten theirs anew.
    module._apply(lambda tensor: tensor.to(dtype) if tensor in casting else tensor, recurse=False)  # type: ignore[no-untyped-call]
    return before


def _share_dropped(param: Tensor, exact: Tensor) -> float:
    """The norm of what a cast dropped over the norm of the parameter."""
    size, whole = _norm(exact - param.detach().to(torch.float32)), _norm(exact)
    return size / whole if whole else 0.0


def full_precision_state_dict(model: nn.Module, optimizer: CollageAdamW) -> dict[str, Tensor]:
    """Everything that is stored of each parameter, as float32: {parameter name: tensor of its shape}.

    The master where there is one, hi + lo for a pair, else the weight itself. For export and evaluation.
    """
    return {name: optimizer.stored_value(param) for name, param in model.named_parameters()}


def _norm(tensor: Tensor) -> float:
    """The norm of the whole tensor, on every rank: that of a shard alone would lead ranks different ways."""
    norm: Tensor = tensor.norm()
    return float(norm.full_tensor() if is_sharded(norm) else norm)  # type: ignore[attr-defined]


def _kept(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
