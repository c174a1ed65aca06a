"""The strict backend: every operation rounded to the storage format, the setting of [Collage] (numerics §2).

Slow, and meant to be: it is the reference for hardware without a float32 unit, used by the reproduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roundoff.numerics import expand, grow, multiply, round_to
from roundoff.numerics.transforms import add, product

from .reference import Chunk, chunks, intend, observe, snapshot
from .step import Step

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy
    from roundoff.watch.statistics import Meter


def step_storage(
    param: Tensor,
    grad: Tensor,
    state: Mapping[str, Tensor],
    strategy: Strategy,
    step: Step,
    meter: Meter | None = None,
) -> None:
    """One AdamW step with storage arithmetic; see `kernels.step.Kernel`. Not for a float32 master."""
    for chunk in chunks(param, grad, state, strategy):
        before = snapshot(chunk, meter)
        # The intended update is defined in float32 from the pre-step state, whatever the step then does.
        _, _, u, decay = intend(chunk, step) if before is not None else (None, None, None, None)
        _update_moments(chunk, step)
        _update_weight(chunk, step)
        if meter is not None and before is not None and u is not None:
            observe(meter, before, chunk, u, decay, step)


def _update_moments(chunk: Chunk, step: Step) -> None:
    dtype = chunk["exp_avg"].dtype
    g = round_to(-chunk["grad"].to(torch.float64) if step.maximize else chunk["grad"], dtype)
    beta1, rest1, rest2 = (_word(x, g) for x in (step.beta1, 1.0 - step.beta1, 1.0 - step.beta2))
    chunk["exp_avg"].copy_(add(product(chunk["exp_avg"], beta1), product(g, rest1)))
    share = product(product(g, g), rest2)
    v = chunk["exp_avg_sq"]
    if "exp_avg_sq_lo" in chunk:
        # β2 as a pair: 0.999 alone is 1.0 in bfloat16, and v would never decay.
        beta2 = (word.to(g.device) for word in expand(step.beta2, dtype))
        hi, lo = grow(*multiply(v, chunk["exp_avg_sq_lo"], *beta2), share)
        chunk["exp_avg_sq_lo"].copy_(lo)
        v.copy_(hi)
    else:
        v.copy_(add(product(v, _word(step.beta2, g)), share))


def _update_weight(chunk: Chunk, step: Step) -> None:
    w, m, v = chunk["param"], chunk["exp_avg"], chunk["exp_avg_sq"]
    if "exp_avg_sq_lo" in chunk:
        v = add(v, chunk["exp_avg_sq_lo"])
    corrected = _divide(v, _word(step.correction2, v))
    root = round_to(corrected.to(torch.float64).sqrt(), v.dtype)
    direction = _divide(_divide(m, _word(step.correction1, m)), add(root, _word(float(step.eps), v)))
    if step.weight_decay:
        stored = add(w, chunk["lo"]) if "lo" in chunk else w
        direction = add(direction, product(stored, _word(step.weight_decay, w)))
    u = product(direction, _word(-float(step.lr), w))
    if "lo" in chunk:
        hi, lo = grow(w, chunk["lo"], u)
        chunk["lo"].copy_(lo)
        w.copy_(hi)
    else:
        w.copy_(add(w, u))


def _word(value: float, like: Tensor) -> Tensor:
    """A number rounded once to the storage format of `like`, 0-dim, on its device."""
    return round_to(torch.tensor(value, dtype=torch.float64, device=like.device), like.dtype)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """RN(a / b): binary64 holds more than twice the digits, so its own rounding cannot show."""
    return round_to(a.to(torch.float64) / b.to(torch.float64), a.dtype)
