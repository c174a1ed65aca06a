"""The readable backend: AdamW in float32 registers, every stored tensor rounded once (numerics §2–3).

It works on chunks, so that the float32 temporaries stay in cache and no float32 copy of a tensor exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roundoff.numerics import add_to_pair
from roundoff.watch.stored import stored_between

from .step import Step

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy
    from roundoff.watch.statistics import Meter

CHUNK = 1 << 16
"""Elements updated at a time."""

Chunk = dict[str, Tensor]
"""Views of the tensors of one parameter on one stretch of elements: `param`, `grad` and the state's names."""


def step_fp32(
    param: Tensor,
    grad: Tensor,
    state: Mapping[str, Tensor],
    strategy: Strategy,
    step: Step,
    meter: Meter | None = None,
) -> None:
    """One AdamW step with binary32 arithmetic; see `kernels.step.Kernel`."""
    for chunk in chunks(param, grad, state, strategy):
        before = snapshot(chunk, meter)
        m, v, u, decay = intend(chunk, step)
        store_moments(chunk, m, v)
        apply(chunk, u)
        if meter is not None and before is not None:
            observe(meter, before, chunk, u, decay, step)


def chunks(param: Tensor, grad: Tensor, state: Mapping[str, Tensor], strategy: Strategy) -> Iterator[Chunk]:
    """Stretches of at most `CHUNK` elements; one that is the whole where the layouts cannot be flattened."""
    tensors = {"param": param, "grad": grad}
    tensors |= {tensor.name: state[tensor.name] for tensor in strategy.state}
    if not all(tensor.is_contiguous() for name, tensor in tensors.items() if name != "grad"):
        yield tensors
        return
    flat = {name: tensor.reshape(-1) for name, tensor in tensors.items()}
    for start in range(0, param.numel(), CHUNK):
        yield {name: tensor[start : start + CHUNK] for name, tensor in flat.items()}


def intend(chunk: Chunk, step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """m', v', the intended update u and its decay part (None without decay), float32, nothing stored yet.

    u = −lr·( (m'/(1−β1ᵗ)) / (√(v'/(1−β2ᵗ)) + eps) + wd·w ) from everything that is stored of m, v and w: the
    formula of `torch.optim.AdamW`, with the decay inside u (numerics §3).
    """
    g = chunk["grad"].to(torch.float32)
    if step.maximize:
        g = -g
    m = chunk["exp_avg"].to(torch.float32) * step.beta1 + g * (1.0 - step.beta1)
    v = total(chunk, "exp_avg_sq", "exp_avg_sq_lo") * step.beta2 + (g * g) * (1.0 - step.beta2)
    denominator = (v / step.correction2).sqrt_().add_(step.eps)
    u = (m / step.correction1).div_(denominator).mul_(-step.lr)
    if not step.weight_decay:
        return m, v, u, None
    w = chunk["master"] if "master" in chunk else total(chunk, "param", "lo")
    decay = w * (-step.lr * step.weight_decay)
    return m, v, u.add_(decay), decay


def total(chunk: Chunk, hi: str, lo: str) -> Tensor:
    """Everything stored under two names, as float32."""
    wide = chunk[hi].to(torch.float32)
    return wide + chunk[lo].to(torch.float32) if lo in chunk else wide


def store_moments(chunk: Chunk, m: Tensor, v: Tensor) -> None:
    """Round the moments to storage, once; v to two words where the strategy keeps them."""
    chunk["exp_avg"].copy_(m)
    chunk["exp_avg_sq"].copy_(v)
    if "exp_avg_sq_lo" in chunk:
        rest = v - chunk["exp_avg_sq"].to(torch.float32)
        chunk["exp_avg_sq_lo"].copy_(torch.where(rest.isfinite(), rest, 0.0))


def apply(chunk: Chunk, u: Tensor) -> None:
    """Add u to everything that is stored of the weight."""
    if "master" in chunk:
        chunk["master"].add_(u)
        chunk["param"].copy_(chunk["master"])
    elif "lo" in chunk:
        hi, lo = add_to_pair(chunk["param"], chunk["lo"], u)
        chunk["param"].copy_(hi)
        chunk["lo"].copy_(lo)
    else:
        chunk["param"].copy_(chunk["param"].to(torch.float32) + u)


def snapshot(chunk: Chunk, meter: Meter | None) -> Chunk | None:
    """The words before the step, if they are to be measured and there is memory for them."""
    if meter is None or meter.error is not None:
        return None
    try:
        return {name: words.clone() for name, words in chunk.items()}
    except RuntimeError as error:
        meter.error = error
        return None


def observe(meter: Meter, before: Chunk, after: Chunk, u: Tensor, decay: Tensor | None, step: Step) -> None:
    """Measure what one chunk's step did. `before` holds the words as they were. Never raises into the step."""
    try:
        old = {name: words.reshape(-1) for name, words in before.items()}
        new = {name: words.reshape(-1) for name, words in after.items()}
        term = None if decay is None else decay.reshape(-1)
        counted = meter.update(old["param"], new["param"], u.reshape(-1), stored_between(old, new), term)
        v, v_lo = ("exp_avg_sq", "exp_avg_sq_lo")
        words = (old[v], new[v], old["grad"], step.beta2, old.get(v_lo), new.get(v_lo))
        meter.moment(*words, counted=counted)
    except Exception as error:  # noqa: BLE001 (a half-finished step would be worse than an unmeasured one)
        meter.error = error
