"""One AdamW step, several backends, one signature (`step.Kernel`)."""

from collections.abc import Sequence

import torch

from .canary import run_canary as run_canary
from .cpu import step_cpu, unavailable as cpu_unavailable, words_in_memory as words_in_memory
from .reference import step_fp32
from .step import Kernel as Kernel, Noise as Noise, Step as Step, Update as Update
from .storage import step_storage
from .triton_step import available as triton_unavailable, step_triton

KERNELS: dict[tuple[str, str], Kernel] = {
    ("reference", "fp32"): step_fp32,
    ("reference", "storage"): step_storage,
    ("cpu", "fp32"): step_cpu,
    ("triton", "fp32"): step_triton,
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
    if backend == "triton":
        return triton_unavailable()
    return cpu_unavailable() if backend == "cpu" else None


def check_dtype(backend: str, dtype: torch.dtype) -> None:
    """Raise TypeError where a backend asked for by name has no code for parameters of this dtype."""
    if dtype.itemsize == 1 and backend not in ("auto", "reference"):
        raise TypeError(
            f"backend {backend!r} does not step {dtype} parameters, which are experimental; the reference alone "
            "does: backend='auto' or 'reference'"
        )


def step_fastest(updates: Sequence[Update]) -> None:
    """AdamW steps with binary32 arithmetic, each tensor by the fastest backend for the device it is on."""
    on_gpu = [update for update in updates if update.param.device.type == "cuda"]
    others = [update for update in updates if update.param.device.type != "cuda"]
    if on_gpu:
        (step_triton if unavailable("triton") is None else step_fp32)(on_gpu)
    if others:
        (step_cpu if unavailable("cpu") is None else step_fp32)(others)


def kernel_for(backend: str, arithmetic: str) -> Kernel:
    """The kernel; backend "auto" takes the fastest that this machine has for each tensor.

    Raises ValueError for a backend or an arithmetic that is none or that do not go together, and RuntimeError
    for a backend that cannot be used here.
    """
    if arithmetic not in ARITHMETICS:
        raise ValueError(
            f"unknown arithmetic {arithmetic!r}; choose one of {', '.join(map(repr, ARITHMETICS))}"
        )
    if backend == "auto":
        return step_fastest if arithmetic == "fp32" else KERNELS["reference", arithmetic]
    if (why := unavailable(backend)) is not None:
        raise RuntimeError(f"backend {backend!r} cannot be used: {why}; backend='auto' takes what there is")
    if (backend, arithmetic) not in KERNELS:
        raise ValueError(f"backend {backend!r} has no arithmetic={arithmetic!r}; the reference has")
    return KERNELS[backend, arithmetic]
