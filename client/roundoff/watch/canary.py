"""Known steps through the statistics: a compiler or a device that leaves roundings out would make them all wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from roundoff.metrics import Sums
from roundoff.numerics import FORMATS, narrow

from .statistics import Meter
from .stored import Plain


def run_canary(kinds: Iterable[tuple[torch.device, torch.dtype]]) -> None:
    """Step 1.0 by a quarter and by two spacings, on each device in each dtype of weights; the first must be lost.

    Raises RuntimeError where it is not, or where the figures are not those. Dtypes that are not measured are passed
    over. Each kind is looked at once in a process; on a device other than the CPU that waits.
    """
    for device, dtype in kinds:
        if dtype in FORMATS and (found := _wrong(device, dtype)) is not None:
            raise RuntimeError(
                f"the statistics of {dtype} on {device} are wrong ({found}): the rounding is optimised away. If this "
                "runs compiled, set torch._inductor.config.emulate_precision_casts = True; flags like -ffast-math "
                "must be off."
            )


@functools.cache
def _wrong(device: torch.device, dtype: torch.dtype) -> str | None:
    form = FORMATS[dtype]
    spacing = 2.0 ** (1 - form.precision)
    before = torch.ones(2, dtype=dtype, device=device)
    u = torch.tensor([spacing / 4, 2 * spacing], dtype=torch.float32, device=device)
    after = narrow(before.to(torch.float64) + u, dtype)
    meter = Meter(device)
    meter.update(before, after, u, Plain(form))
    sums = meter.sums()
    wanted = Sums(
        numel=2, attempted=2, lost=1, invisible=1, unchanged=1, sum_uu=(4 + 1 / 16) * spacing**2,
        sum_ua=4 * spacing**2, sum_aa=4 * spacing**2, sum_us=4 * spacing**2, sum_ss=4 * spacing**2, sum_ww=2.0,
    )  # fmt: skip
    names = ("numel", "attempted", "lost", "invisible", "unchanged", "sum_uu", "sum_ua", "sum_aa", "sum_ww")
    for name in names:
        if getattr(sums, name) != getattr(wanted, name):
            return f"{name} is {getattr(sums, name)}, must be {getattr(wanted, name)}"
    return None
