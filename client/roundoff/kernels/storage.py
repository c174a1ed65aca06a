"""The strict backend: every operation rounded to the storage format, the setting of [Collage] (numerics §2).

Slow, and meant to be: it is the reference for hardware without a float32 unit, used by the reproduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roundoff.numerics import expand, grow, multiply, round_stochastic, round_to
from roundoff.numerics.transforms import add, product, subtract

from .reference import Chunk, chunks, intend, noise_words, observe, snapshot
from .step import Step, Update

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy


def step_storage(updates: Sequence[Update]) -> None:
    """AdamW steps with storage arithmetic; see `kernels.step.Kernel`. Not for what is kept in float32."""
    for update in updates:
        step = update.step
        for start, chunk in chunks(update):
            before = snapshot(chunk, update.meter)
            # The intended update is defined in float32 from the pre-step state, whatever the step then does.
            _, _, u, decay = intend(chunk, step) if before is not None else (None, None, None, None)
            old = (
                {name: words.clone() for name, words in chunk.items()} if step.found_inf is not None else None
            )
            _update_moments(chunk, step)
            _update_weight(chunk, step, update.strategy, noise_words(update.noise, start, chunk))
            if old is not None and step.found_inf is not None:
                for name, words in chunk.items():
                    if name != "grad":
                        words.copy_(torch.where(step.found_inf == 0, words, old[name]))
            if update.meter is not None and before is not None and u is not None:
                observe(update.meter, before, chunk, u, decay, step)


def _update_moments(chunk: Chunk, step: Step) -> None:
    dtype = chunk["exp_avg"].dtype
    g = round_to(_gradient(chunk, step), dtype)
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
    if step.amsgrad:
        _keep_largest(chunk)


def _gradient(chunk: Chunk, step: Step) -> Tensor:
    g = chunk["grad"].to(torch.float64)
    if step.gradient_scale is not None:
        g = g * step.gradient_scale
    return -g if step.maximize else g


def _keep_largest(chunk: Chunk) -> None:
    """The larger of v and its maximum, compared by everything stored of both."""
    names = [name for name in ("exp_avg_sq", "exp_avg_sq_lo") if name in chunk]
    new, old = (
        sum((chunk[f"{prefix}{name}"].to(torch.float64) for name in names), torch.zeros(()))
        for prefix in ("", "max_")
    )
    for name in names:
        largest = chunk[f"max_{name}"]
        largest.copy_(torch.where((new > old) | new.isnan(), chunk[name], largest))


def _update_weight(chunk: Chunk, step: Step, strategy: Strategy, words: Tensor | None) -> None:
    w, m = chunk["param"], chunk["exp_avg"]
    prefix = "max_" if step.amsgrad else ""
    v = chunk[f"{prefix}exp_avg_sq"]
    if "exp_avg_sq_lo" in chunk:
        v = add(v, chunk[f"{prefix}exp_avg_sq_lo"])
    corrected = _divide(v, _word(step.correction2, v))
    root = round_to(corrected.to(torch.float64).sqrt(), v.dtype)
    direction = _divide(_divide(m, _word(step.correction1, m)), add(root, _word(step.eps, v)))
    if step.weight_decay:
        stored = add(w, chunk["lo"]) if "lo" in chunk else w
        direction = add(direction, product(stored, _word(step.weight_decay, w)))
    u = product(direction, _word(-step.lr, w))
    if "lo" not in chunk:
        exact = w.to(torch.float32) + u.to(torch.float32)
        w.copy_(add(w, u) if words is None else round_stochastic(exact, w.dtype, words))
        return
    if strategy.name == "kahan":
        y = add(u, chunk["lo"])
        hi = add(w, y)
        lo = subtract(y, subtract(hi, w))
        lo = torch.where(hi.isfinite(), lo, 0.0)
    else:
        hi, lo = grow(w, chunk["lo"], u)
    chunk["lo"].copy_(lo)
    w.copy_(hi)


def _word(value: float | Tensor, like: Tensor) -> Tensor:
    """A number rounded once to the storage format of `like`, 0-dim, on its device."""
    return round_to(torch.as_tensor(value, dtype=torch.float64, device=like.device), like.dtype)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """RN(a / b): binary64 holds more than twice the digits, so its own rounding cannot show."""
    return round_to(a.to(torch.float64) / b.to(torch.float64), a.dtype)
