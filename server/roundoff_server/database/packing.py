"""Columns of numbers as one blob: each in the narrowest words that hold it exactly, so that most are small.

A blob is the number of rows (little-endian, 4 bytes), one code for each column, and the columns' little-endian
words one after the other. A code is a numpy dtype's letter and size in one byte; 0 stands for a column of zeros,
which takes no words. Floats keep every bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.float32]

_ZEROS = 0
_TYPES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8", 0x14: "<f4", 0x18: "<f8"}
_LENGTH = 4


def pack(columns: Sequence[Numbers]) -> bytes:
    """The columns, all of one length, as a blob. Integers are int64, floats binary32 or binary64."""
    codes = [_code(column) for column in columns]
    words = [
        column.astype(_TYPES[code]).tobytes() for code, column in zip(codes, columns, strict=True) if code
    ]
    length = len(columns[0]) if columns else 0
    return length.to_bytes(_LENGTH, "little") + bytes(codes) + b"".join(words)


def _code(column: Numbers) -> int:
    if not column.view(f"u{column.dtype.itemsize}").any():  # by bits: −0.0 is not 0
        return _ZEROS
    if column.dtype.kind == "f":
        return 0x10 + column.dtype.itemsize
    low, high = int(column.min()), int(column.max())
    return next((size for size in (1, 2, 4) if low >= 0 and high < 256**size), 8)


def unpack(blob: bytes, width: int, wanted: Sequence[int]) -> list[Numbers]:
    """The columns with numbers `wanted` of a blob of `width` columns, as int64, binary32 or binary64.

    A column of zeros comes back as int64.
    """
    length = int.from_bytes(blob[:_LENGTH], "little")
    codes = blob[_LENGTH : _LENGTH + width]
    starts = np.cumsum([_LENGTH + width, *((code & 0x0F) * length for code in codes)])
    return [_column(blob, codes[index], int(starts[index]), length) for index in wanted]


def _column(blob: bytes, code: int, start: int, length: int) -> Numbers:
    if code == _ZEROS:
        return np.zeros(length, dtype="i8")
    words = np.frombuffer(blob, _TYPES[code], length, start)
    return words if words.dtype.kind == "f" else words.astype("i8")
