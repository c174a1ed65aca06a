"""Compile the C step: one plain shared library, no Python and no torch in its interface.

Used when the package is built or installed; imports nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "source"
LIBRARY = FOLDER / f"_step{'.dylib' if sys.platform == 'darwin' else '.so'}"

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
)
"""No flag here lets the compiler reassociate, contract or otherwise change what is rounded."""

X86_SETS = {"baseline": (), "avx2": ("-mavx2", "-mf16c"), "avx512": ("-mavx512f", "-mavx512bw", "-mf16c")}
"""Compiler flags by instruction set, of which the library picks one when it runs."""


class CannotBuildError(Exception):
    """Why there is no library: no compiler, or one that does not take the source."""


def source_hash() -> str:
    """Of the source and the flags, so that a library made from others is noticed."""
    digest = hashlib.sha256(repr((FLAGS, X86_SETS)).encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def build(target: Path = LIBRARY) -> Path:
    """Compile the library to `target`, replacing it in one move, unless it is there. Raises CannotBuildError."""
    if target.exists() and source_hash().encode() in target.read_bytes():
        return target
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or os.name != "posix":
        raise CannotBuildError("there is no C compiler (cc, gcc or clang, or the one that CC names)")
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    sets = X86_SETS if x86 else {"baseline": ()}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        objects = []
        for name, flags in sets.items():
            made = Path(folder, f"{name}.o")
            _run(
                compiler,
                *FLAGS,
                *flags,
                f"-DINSTRUCTION_SET={name}",
                "-c",
                str(SOURCE / "block.c"),
                "-o",
                str(made),
            )
            objects.append(str(made))
        entry, library = Path(folder, "step.o"), Path(folder, target.name)
        _run(
            compiler,
            *FLAGS,
            f'-DSOURCE_HASH="{source_hash()}"',
            "-c",
            str(SOURCE / "step.c"),
            "-o",
            str(entry),
        )
        _run(compiler, "-shared", "-o", str(library), str(entry), *objects, "-lm", "-lpthread")
        library.replace(target)
    return target


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    print(build())  # noqa: T201 (the command's only output)
