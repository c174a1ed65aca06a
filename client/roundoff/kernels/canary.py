"""One known step through the code that will be used: a compiler may remove the roundings it lives on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from roundoff.numerics import LOWER_WORDS, join_master, join_words

from .step import Kernel, Step, Update

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy

_LR = 1e-4
_BETA2 = 0.9
_LR_FLOAT8 = 2.0**-5 + 2.0**-9
"""−1 less this takes three words of float8, in either format; two are off by 2⁻⁹."""


def run_canary(
    kernel: Kernel, plan: Strategy, device: torch.device, dtype: torch.dtype, arithmetic: str = "fp32"
) -> None:
    """Take one step from 1.0 by −1e-4 with this kernel on this device, and look at what the second words hold.

    In float8 from −1.0 by an amount that fills a second word and a third.

    Raises RuntimeError if they are not what they must be.
    """

    def one(value: float, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.full((1,), value, dtype=kind, device=device)

    start, lr, within = 1.0, _LR, 2.0**-16
    if dtype.itemsize == 1:
        start, lr, within = -1.0, _LR_FLOAT8, 0.0 if plan.keeps("lo2") else 2.0**-9
    w, g = one(start), one(1.0)
    state = {tensor.name: one(0.0, tensor.dtype_for(dtype)) for tensor in plan.state}
    kernel([Update(w, g, state, plan, Step(1, lr, 0.9, _BETA2, 0.0, 0.0))])
    if plan.keeps("lo"):
        stored = float(join_words([w, *(state[name] for name in LOWER_WORDS if name in state)]))
        _expect("w", stored, start - lr, within, device, dtype)
    if plan.keeps("remainder"):
        _expect("w", float(join_master(w, state["remainder"])), 1.0 - _LR, 2.0**-23, device, dtype)
    if plan.keeps("exp_avg_sq_remainder"):
        v = float(join_master(state["exp_avg_sq"], state["exp_avg_sq_remainder"]))
        _expect("v", v, 1.0 - _BETA2, 2.0**-26, device, dtype)
    if plan.keeps("exp_avg_sq_lo"):
        v = float(state["exp_avg_sq"]) + float(state["exp_avg_sq_lo"])
        # Storage arithmetic rounds 1 − β2 itself to the format.
        wanted = 1.0 - _BETA2 if arithmetic == "fp32" else float(one(1.0 - _BETA2))
        _expect("v", v, wanted, 2.0**-17, device, dtype)


def _expect(
    name: str, value: float, wanted: float, within: float, device: torch.device, dtype: torch.dtype
) -> None:
    if abs(value - wanted) <= within:
        return
    raise RuntimeError(
        f"the second word of {name} in {dtype} on {device} does not hold what rounding dropped (off by "
        f"{abs(value - wanted):.3g}): the rounding is optimised away. If this runs compiled, set "
        "torch._inductor.config.emulate_precision_casts = True; flags like -ffast-math must be off."
    )
