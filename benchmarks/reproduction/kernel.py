"""A quick kernel for storage arithmetic in bfloat16, bit-equal to the reference.

The reference rounds every operation once by way of float64, for any format, and takes seconds per million
elements. In bfloat16 PyTorch's own operations do the same roundings: each is carried out in float32 and rounded
to bfloat16, and as float32's 24 digits are at least 2·8 + 2, the second rounding never shows in a sum, a product,
a quotient or a square root (Figueroa, *When is double rounding innocuous?*, 1995). The fused
multiply-add goes through a float32 sum rounded to odd. Not covered are products below float32's normal range, which
do not occur here; the tests compare whole training steps with the reference bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roundoff.kernels import KERNELS, Step, Update
from roundoff.kernels.reference import Chunk, chunks, intend, noise_words, observe, snapshot
from roundoff.numerics import expand, round_stochastic

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy


def install() -> None:
    """Let this process's reference take the quick way in storage arithmetic."""
    KERNELS["reference", "storage"] = step_native


def step_native(updates: Sequence[Update]) -> None:
    """AdamW steps with storage arithmetic on bfloat16; see `kernels.step.Kernel`. No amsgrad, no loss scaler.

    Raises ValueError for those and TypeError for another dtype.
    """
    for update in updates:
        step = update.step
        if step.amsgrad or step.maximize or step.gradient_scale is not None or step.found_inf is not None:
            raise ValueError("the native kernel knows plain AdamW only; use backend='reference'")
        if update.param.dtype != torch.bfloat16 or update.grad.dtype != torch.bfloat16:
            raise TypeError(
                f"the native kernel takes bfloat16, got {update.param.dtype} and {update.grad.dtype}"
            )
        for start, chunk in chunks(update):
            before = snapshot(chunk, update.meter)
            _, _, u, decay = intend(chunk, step) if before is not None else (None, None, None, None)
            _moments(chunk, step)
            _weight(chunk, step, update.strategy, noise_words(update.noise, start, chunk))
            if update.meter is not None and before is not None and u is not None:
                observe(update.meter, before, chunk, u, decay, step)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _grow(hi: Tensor, lo: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    s, error = _two_sum(hi, x)
    return _two_sum(s, lo + error)


def _multiply(hi: Tensor, lo: Tensor, c_hi: Tensor, c_lo: Tensor) -> tuple[Tensor, Tensor]:
    p = hi * c_hi
    # The product of two bfloat16 words and its distance from p are exact in float32.
    error = (hi.float() * c_hi.float() - p.float()).to(p.dtype)
    t = _add_once(hi.float() * c_lo.float(), (lo * c_hi).float())
    return _two_sum(p, t + error)


def _add_once(a: Tensor, b: Tensor) -> Tensor:
    """RN(a + b) of float32 tensors to bfloat16: the float32 sum is rounded to odd, so the cast rounds alone."""
    total, error = _two_sum(a, b)
    bits = total.view(torch.int32)
    toward_error = torch.where((error > 0) == (total > 0), 1, -1)
    odd = bits + torch.where((error != 0) & (bits & 1 == 0), toward_error, 0)
    return odd.to(torch.int32).view(torch.float32).to(torch.bfloat16)


def _moments(chunk: Chunk, step: Step) -> None:
    g, m, v = chunk["grad"], chunk["exp_avg"], chunk["exp_avg_sq"]
    m.copy_(m * _word(step.beta1) + g * _word(1.0 - step.beta1))
    share = g * g * _word(1.0 - step.beta2)
    if "exp_avg_sq_lo" not in chunk:
        v.copy_(v * _word(step.beta2) + share)
        return
    hi, lo = _grow(*_multiply(v, chunk["exp_avg_sq_lo"], *_pair(step.beta2)), share)
    v.copy_(hi)
    chunk["exp_avg_sq_lo"].copy_(lo)


def _weight(chunk: Chunk, step: Step, strategy: Strategy, words: Tensor | None) -> None:
    w, m, v = chunk["param"], chunk["exp_avg"], chunk["exp_avg_sq"]
    if "exp_avg_sq_lo" in chunk:
        v = v + chunk["exp_avg_sq_lo"]
    denominator = (v / _word(step.correction2)).sqrt() + _word(step.eps)
    direction = m / _word(step.correction1) / denominator
    if step.weight_decay:
        stored = w + chunk["lo"] if "lo" in chunk else w
        direction = direction + stored * _word(step.weight_decay)
    u = direction * _word(-step.lr)
    if "lo" not in chunk:
        w.copy_(w + u if words is None else round_stochastic(w.float() + u.float(), w.dtype, words))
        return
    if strategy.name == "kahan":
        y = u + chunk["lo"]
        hi = w + y
        lo = torch.where(hi.isfinite(), y - (hi - w), 0.0)
    else:
        hi, lo = _grow(w, chunk["lo"], u)
    chunk["lo"].copy_(lo)
    w.copy_(hi)


@lru_cache(maxsize=64)
def _word(value: float) -> Tensor:
    """A number rounded once to bfloat16, with one dimension so that PyTorch does not compute in its own precision."""
    return expand(value, torch.bfloat16, 1)[0].reshape(1)


@lru_cache(maxsize=8)
def _pair(value: float) -> tuple[Tensor, Tensor]:
    hi, lo = expand(value, torch.bfloat16)
    return hi, lo
