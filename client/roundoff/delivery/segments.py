"""Files of a spool: appended to by one thread, read by another, each with a descriptor of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from .frames import HEADER_BYTES, Frame, unpack

SEGMENT_BYTES = 8 * 2**20
"""A file grows to about this size; then the next one is begun, and this one goes once it is acknowledged."""

SUFFIX = ".spool"


class Segment(NamedTuple):
    """One file, named after the number of its first record."""

    first: int
    path: Path


def segment_at(folder: Path, first: int) -> Segment:
    """The file that begins with record `first`."""
    return Segment(first, folder / f"{first:016d}{SUFFIX}")


def segments_in(folder: Path) -> list[Segment]:
    """The files of a folder, oldest record first. Raises OSError if it cannot be listed."""
    found = [path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal()]
    return sorted(Segment(int(path.stem), path) for path in found)


class SegmentWriter:
    """Appends to a new file. What `write` has returned from survives the process, though not a power cut."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self.size = 0

    def write(self, data: bytes) -> None:
        """All of `data` or, with an OSError, nothing of it."""
        rest = memoryview(data)
        self._file.seek(self.size)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # then a reader finds a torn frame, as after a kill
                self._file.truncate(self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


class SegmentReader:
    """Reads a file that may still grow, from its beginning, frame by frame."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._at = 0

    def frames(self, size: int) -> list[Frame]:
        """The next intact frames: about `size` bytes of them, at least one, empty if there is none (yet)."""
        size = max(size, HEADER_BYTES)
        while True:
            self._file.seek(self._at)
            data = self._file.read(size)
            found = list(unpack(data))
            if found:
                self._at += found[-1].end
                return found
            if len(data) < size:
                return []
            size *= 2

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
