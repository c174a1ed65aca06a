"""How far the server has acknowledged a spool: 56 bytes in place, so that a full disk can take them too."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

_SLOT = struct.Struct("<QQQQ")
_CHECKSUM = struct.Struct("<I")
SLOT_BYTES = _SLOT.size + _CHECKSUM.size

LIFE = 2**32
"""Each process that goes on with a spool numbers its batches from the next multiple of this on. A number that an
earlier one has used, though the disk did not take it, then never stands for other records."""


class Position(NamedTuple):
    """Records before `start` are acknowledged; those from `start` to before `end` are batch `seq`, on its way."""

    start: int = 0
    end: int = 0
    seq: int = -1


class Cursor:
    """The position of one writer's batches, kept in the file `path`.

    A batch is `sealed` before it is sent: whoever goes on after a crash sends the same records under the same number,
    which the server takes once. Two slots are written in turn, so one of them is whole whatever happens. Raises OSError
    if the file can be neither read nor made.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0)
        self._turn, self.position = self._read()
        self._left = self.position.end > self.position.start
        self._seq = self.position.seq
        if self._turn:
            self._seq = (self._seq // LIFE + 1) * LIFE - 1

    @property
    def left(self) -> int | None:
        """Where the batch ends that an earlier process sealed and did not bring to an end; None without one."""
        return self.position.end if self._left else None

    def seal(self, end: int) -> int:
        """Make the records up to before `end` a batch; returns its number, that of a batch that was left for that."""
        if self._left:
            self._left = False
            return self.position.seq
        self._seq += 1
        self._move(Position(self.position.start, max(end, self.position.start), self._seq))
        return self._seq

    def acknowledge(self) -> None:
        """The sealed batch has come to its end."""
        self._left = False
        self._move(self.position._replace(start=self.position.end))

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def _move(self, position: Position) -> None:
        self.position = position
        self._turn += 1
        slot = _SLOT.pack(self._turn, position.start, position.end, position.seq + 1)
        try:
            self._file.seek(self._turn % 2 * SLOT_BYTES)
            self._file.write(slot + _CHECKSUM.pack(crc32(slot)))
        except (OSError, ValueError):
            return  # what is sent twice for it is stored once: rows are found by step

    def _read(self) -> tuple[int, Position]:
        data = self._file.read(2 * SLOT_BYTES)
        if not data:
            self._file.write(
                bytes(2 * SLOT_BYTES)
            )  # what was written once can be written again on a full disk
        found = [(0, Position())]
        for at in (0, SLOT_BYTES):
            slot = data[at : at + _SLOT.size]
            if len(data) >= at + SLOT_BYTES and _CHECKSUM.unpack_from(data, at + _SLOT.size)[0] == crc32(
                slot
            ):
                turn, start, end, seq = _SLOT.unpack(slot)
                found.append((turn, Position(start, end, seq - 1)))
        return max(found)
