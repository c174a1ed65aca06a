"""One AdamW step, several backends, one signature (`step.Kernel`)."""

from .canary import run_canary as run_canary
from .reference import step_fp32
from .step import Kernel as Kernel, Noise as Noise, Step as Step, Update as Update
from .storage import step_storage

KERNELS: dict[tuple[str, str], Kernel] = {
    ("reference", "fp32"): step_fp32,
    ("reference", "storage"): step_storage,
}
"""Kernels by (backend, arithmetic)."""

BACKENDS = tuple(sorted({backend for backend, _ in KERNELS}))
ARITHMETICS = tuple(sorted({arithmetic for _, arithmetic in KERNELS}))


def kernel_for(backend: str, arithmetic: str) -> Kernel:
    """The kernel; backend "auto" takes the fastest that this machine has.

    Raises ValueError for a backend or an arithmetic that is none.
    """
    if arithmetic not in ARITHMETICS:
        raise ValueError(
            f"unknown arithmetic {arithmetic!r}; choose one of {', '.join(map(repr, ARITHMETICS))}"
        )
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; choose 'auto' or one of {', '.join(map(repr, BACKENDS))}"
        )
    return KERNELS["reference" if backend == "auto" else backend, arithmetic]
