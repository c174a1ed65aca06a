"""One known pair through the code that will be used: a compiler may remove the roundings it lives on."""

from __future__ import annotations

import torch

from roundoff.numerics import add_to_pair, two_sum

_STEP = -1e-4


def run_canary(device: torch.device, dtype: torch.dtype) -> None:
    """Add −1e-4 to 1.0 on `device` and check the residual. Raises RuntimeError if it is not what it must be."""
    hi = torch.ones(1, dtype=dtype, device=device)
    lo = torch.zeros(1, dtype=dtype, device=device)
    u = torch.full((1,), _STEP, dtype=torch.float32, device=device)
    new_hi, new_lo = add_to_pair(hi, lo, u)
    exact = 1.0 + u.to(torch.float64)
    missing = (new_hi.to(torch.float64) + new_lo.to(torch.float64) - exact).abs().item()
    s, error = two_sum(hi, u.to(dtype))
    whole = (s.to(torch.float64) + error.to(torch.float64)).item() == 1.0 + u.to(dtype).to(
        torch.float64
    ).item()
    if missing > 2.0**-16 or not whole:
        raise RuntimeError(
            f"rounding to {dtype} and back is optimised away on {device}: 1.0 − 1e-4 as a pair misses "
            f"{missing:.3g}. If this runs compiled, set torch._inductor.config.emulate_precision_casts = True; "
            "flags like -ffast-math must be off."
        )
