"""Load the compiled step, if it is there, was made from this source, and gives the bits that it must."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from .build import LIBRARY, SOURCE, source_hash

INSTRUCTION_SETS = ("avx512", "avx2", "baseline")
"""Best first."""

SAMPLED = 32
"""Words that are sampled of a tensor that has more; block.h has the same."""

_NO_MEMORY = "no memory for the bookkeeping of an optimizer step"


class UnavailableError(RuntimeError):
    """Why the compiled step cannot be used here."""


@dataclass(frozen=True, slots=True)
class Library:
    """The compiled step for one instruction set, and PyTorch's way of running in parallel (None if not found)."""

    handle: ctypes.CDLL
    instruction_set: str
    kernels: int
    has_float16: bool
    parallel: ctypes.c_void_p | None

    def step(self, jobs: int, count: int, threads: int, *, bins: bool) -> None:
        """Run `count` packed jobs at address `jobs`. Raises MemoryError before anything was changed."""
        done = self.handle.roundoff_step(
            ctypes.c_void_p(self.kernels),
            ctypes.c_void_p(jobs),
            ctypes.c_int64(count),
            threads,
            self.parallel,
            int(bins),
        )
        if done != 0:
            raise MemoryError(_NO_MEMORY)

    def measure(self, jobs: bytes, taken: bytes, count: int, threads: int, *, bins: bool) -> None:
        """Measure `count` steps that somebody else took; see source/block.h. Raises MemoryError if there is none."""
        done = self.handle.roundoff_measure(
            ctypes.c_void_p(self.kernels),
            jobs,
            taken,
            ctypes.c_int64(count),
            threads,
            self.parallel,
            int(bins),
        )
        if done != 0:
            raise MemoryError(_NO_MEMORY)

    def look(self, turns: int, tensors: int, count: int, counts: int, changed: int) -> None:
        """Look at `count` turns at address `turns` before they step; see source/step.c."""
        self.handle.roundoff_look(
            ctypes.c_void_p(turns),
            ctypes.c_void_p(tensors),
            ctypes.c_int64(count),
            ctypes.c_void_p(counts),
            ctypes.c_void_p(changed),
        )

    def step_standing(
        self, turns: int, tensors: int, count: int, settings: int, sums: tuple[int, int], threads: int
    ) -> None:
        """Run `count` turns with the scalars at `settings`; `sums` are addresses of rows and bins, or 0.

        Raises MemoryError before anything was changed.
        """
        done = self.handle.roundoff_step_standing(
            ctypes.c_void_p(self.kernels),
            ctypes.c_void_p(turns),
            ctypes.c_void_p(tensors),
            ctypes.c_int64(count),
            ctypes.c_void_p(settings),
            ctypes.c_void_p(sums[0]),
            ctypes.c_void_p(sums[1]),
            threads,
            self.parallel,
        )
        if done != 0:
            raise MemoryError(_NO_MEMORY)

    def sample(self, words: int, size: int, numel: int) -> bytes:
        """A few words, fixed places, of the `numel` words of `size` bytes (2 or 4) at address `words`."""
        room = ctypes.create_string_buffer(size * min(numel, SAMPLED))
        self.handle.roundoff_sample(ctypes.c_void_p(words), size, ctypes.c_int64(numel), room)
        return room.raw


def load(instruction_set: str | None = None, path: Path = LIBRARY) -> Library:
    """The library for an instruction set, None for the best one of this processor. Raises UnavailableError."""
    if not path.exists():
        raise UnavailableError("it was not built when roundoff was installed (there was no C compiler then)")
    # Looked at before it is loaded: the loader maps a file that is cut short, and the process dies of it.
    if SOURCE.is_dir() and source_hash().encode() not in path.read_bytes():
        raise UnavailableError(
            f"{path.name} was made from another version of its source; install roundoff again"
        )
    try:
        handle = ctypes.CDLL(str(path))
        handle.roundoff_job_size.restype = ctypes.c_int64
        handle.roundoff_kernels.restype = ctypes.c_void_p
    except (OSError, AttributeError) as error:
        raise UnavailableError(f"{path.name} cannot be loaded: {error}") from error
    from .jobs import JOB_SIZE
    from .measuring import TAKEN
    from .standing import SIZES

    sizes = {"job": JOB_SIZE, "taken": TAKEN.size, **SIZES}
    if any(handle[f"roundoff_{name}_size"]() != size for name, size in sizes.items()):
        raise UnavailableError(f"{path.name} lays its structures out differently on this platform")
    for name in INSTRUCTION_SETS if instruction_set is None else (instruction_set,):
        kernels = handle.roundoff_kernels(name.encode())
        if kernels:
            has_float16 = bool(handle.roundoff_has_float16(ctypes.c_void_p(kernels)))
            return Library(handle, name, kernels, has_float16, _openmp())
    raise UnavailableError(f"this processor does not have {instruction_set}")


@functools.cache
def library() -> Library:
    """The library for this process, checked against the reference once. Raises UnavailableError."""
    from .check import first_difference

    found = load(os.environ.get("ROUNDOFF_INSTRUCTION_SET") or None)
    if (difference := first_difference(found)) is not None:
        raise UnavailableError(
            f"on this processor ({found.instruction_set}) it gives other bits: {difference}"
        )
    return found


@functools.cache
def unavailable() -> str | None:
    """Why the compiled step cannot be used here; None if it can."""
    try:
        library()
    except UnavailableError as error:
        return str(error)
    return None


def instruction_set() -> str | None:
    """The instruction set that the compiled step uses here; None if it cannot be used."""
    return library().instruction_set if unavailable() is None else None


def _openmp() -> ctypes.c_void_p | None:
    """GOMP_parallel of the OpenMP that PyTorch runs on: on threads of our own we would wait for its spinning ones."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p)
    except (OSError, AttributeError):
        return None
