"""Columns of numbers inside JSON: base64 of little-endian 64-bit words, so that every bit survives.

NaN payloads, infinities, −0.0 and subnormals come back as they went, and reading a column makes no Python
object per value (`numpy.frombuffer(column.raw(), column.numpy_type)`).
"""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

WORD = 8
"""Bytes of one value."""

WHOLE_WORDS = "^([A-Za-z0-9+/]{32})*([A-Za-z0-9+/]{11}=|[A-Za-z0-9+/]{22}==)?$"
"""Base64 of any number of values."""


class Column(BaseModel):
    """`type` "i8" (int64) or "f8" (binary64), `data` base64 of the little-endian words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["i8", "f8"]
    data: str = Field(json_schema_extra={"contentEncoding": "base64", "pattern": WHOLE_WORDS})

    @field_validator("data")
    @classmethod
    def _whole_words(cls, data: str) -> str:
        try:
            raw = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from None
        if len(raw) % WORD:
            raise ValueError(f"{len(raw)} bytes are not a whole number of 64-bit words")
        return data

    @classmethod
    def ints(cls, values: Iterable[int]) -> Column:
        """A column of int64."""
        return cls(type="i8", data=_encode(array("q", values)))

    @classmethod
    def floats(cls, values: Iterable[float]) -> Column:
        """A column of binary64."""
        return cls(type="f8", data=_encode(array("d", values)))

    def raw(self) -> bytes:
        """The little-endian words."""
        return base64.b64decode(self.data)

    @property
    def numpy_type(self) -> str:
        """The dtype for `numpy.frombuffer`."""
        return f"<{self.type}"

    def values(self) -> list[int] | list[float]:
        """The numbers as Python objects."""
        words: array[int] | array[float] = array("q" if self.type == "i8" else "d", self.raw())
        if sys.byteorder == "big":
            words.byteswap()
        return words.tolist()

    def __len__(self) -> int:
        padding = self.data[-2:].count("=")
        return (len(self.data) // 4 * 3 - padding) // WORD


def _encode(words: array[int] | array[float]) -> str:
    if sys.byteorder == "big":
        words.byteswap()
    return base64.b64encode(words.tobytes()).decode("ascii")
