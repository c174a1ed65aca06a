"""One AdamW step, several backends, one signature (`step.Kernel`)."""

from .canary import run_canary as run_canary
from .cpu import step_cpu, unavailable as cpu_unavailable, words_in_memory as words_in_memory
from .reference import step_fp32
from .step import Kernel as Kernel, Noise as Noise, Step as Step, Update as Update
from .storage import step_storage

KERNELS: dict[tuple[str, str], Kernel] = {
    ("reference", "fp32"): step_fp32,
    ("reference", "storage"): step_storage,
    ("cpu", "fp32"): step_cpu,
}
"""Kernels by (backend, arithmetic)."""

BACKENDS = tuple(sorted({backend for backend, _ in KERNELS}))
ARITHMETICS = tuple(sorted({arithmetic for _, arithmetic in KERNELS}))


def unavailable(backend: str) -> str | None:
    """Why a backend cannot be used here; None if it can. Raises ValueError for a name that is none."""
    if backend not in BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; choose 'auto' or one of {', '.join(map(repr, BACKENDS))}"
        )
    return cpu_unavailable() if backend == "cpu" else None


def kernel_for(backend: str, arithmetic: str) -> Kernel:
    """The kernel; backend "auto" takes the fastest that this machine has.

    Raises ValueError for a backend or an arithmetic that is none or that do not go together, and RuntimeError
    for a backend that cannot be used here.
    """
    if arithmetic not in ARITHMETICS:
        raise ValueError(
            f"unknown arithmetic {arithmetic!r}; choose one of {', '.join(map(repr, ARITHMETICS))}"
        )
    if backend == "auto":
        usable = ("cpu", arithmetic) in KERNELS and unavailable("cpu") is None
        return KERNELS["cpu" if usable else "reference", arithmetic]
    if (why := unavailable(backend)) is not None:
        raise RuntimeError(f"backend {backend!r} cannot be used: {why}; backend='auto' takes what there is")
    if (backend, arithmetic) not in KERNELS:
        raise ValueError(f"backend {backend!r} has no arithmetic={arithmetic!r}; the reference has")
    return KERNELS[backend, arithmetic]
