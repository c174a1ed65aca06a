"""Compile the Triton kernel for a GPU and print what came out, as JSON; a script for a process of its own.

The driver is a stand-in, since there is no GPU here: Triton compiles through its own ptxas, down to the binary,
from the very arguments that the optimizer passes, and the launch does nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from cases import item
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from roundoff.kernels import Noise, Step, triton_step
from roundoff.kernels.triton_kernel import step_kernel
from roundoff.watch import Meter

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KNOWN_THERE = {"eps": torch.tensor(1e-8), "found_inf": torch.zeros(())}
"""Scalars on the device."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel to compile."""

    strategy: str
    dtype: torch.dtype
    size: int = 3072
    measured: bool = False
    indexed: bool = False
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "none float32": Case("none", F32),
    "light float16": Case("light", F16),
    "plus bfloat16, measured": Case("plus", BF16, measured=True),
    "kahan bfloat16, one element": Case("kahan", BF16, size=1, options=KNOWN_THERE),
    "stochastic float16": Case("stochastic", F16, size=3001),
    "stochastic bfloat16, indexed": Case("stochastic", BF16, indexed=True),
    "fp32-master bfloat16": Case("fp32-master", BF16, options=KNOWN_THERE),
    "exact bfloat16, everything, measured": Case(
        "exact",
        BF16,
        measured=True,
        options={**KNOWN_THERE, "amsgrad": True, "maximize": True, "gradient_scale": 0.5},
    ),
}


class StandIn:
    """As much of a driver as compiling takes, for a GPU of compute capability 8.0."""

    utils = SimpleNamespace(
        load_binary=lambda name, kernel, shared, device: (None, None, 0, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 1 << 16},
    )

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *args: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def step(**options: Any) -> Step:
    return Step(
        **{"count": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, **options}
    )


def kernels() -> list[Any]:
    """Everything that was compiled so far."""
    return list(step_kernel.device_caches[0][0].values())


def compiled(case: Case) -> str:
    """The assembly of the one kernel that a case takes, whatever its key, its place and the scalars."""
    known = len(kernels())
    one = item(case.strategy, case.dtype, case.size, 1, amsgrad=case.options.get("amsgrad", False))
    for count in (1, 2, 3):
        if one.noise is not None:
            index = torch.arange(case.size) if case.indexed else None
            one.noise = Noise(key=count << 62 | count << 31 | 16 * count, first=count - 1, index=index)
        one.meter = Meter(torch.device("cpu")) if case.measured else None
        triton_step.step_triton([one.update(step(count=count, lr=0.1**count, **case.options))])
    (new,) = kernels()[known:]
    return str(new.asm["ptx"])


def main() -> None:
    driver.set_active(StandIn())
    triton_step._fits = lambda update: True
    triton_step._READABLE = "nowhere"
    json.dump({name: compiled(case) for name, case in CASES.items()}, sys.stdout)


if __name__ == "__main__":
    main()
