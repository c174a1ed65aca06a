"""The header of a safetensors file (https://huggingface.co/docs/safetensors, *Format*).

The safetensors package maps the whole file into the process to read it, so its memory would grow with the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, RootModel, ValidationError

from .tensors import Checkpoint, CheckpointError, StoredTensor

LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""

DTYPES: dict[str, tuple[torch.dtype | None, int]] = {
    "F64": (torch.float64, 8),
    "F32": (torch.float32, 4),
    "F16": (torch.float16, 2),
    "BF16": (torch.bfloat16, 2),
    "F8_E4M3": (torch.float8_e4m3fn, 1),
    "F8_E5M2": (torch.float8_e5m2, 1),
    "F8_E8M0": (None, 1),
    "C64": (None, 8),
    "I64": (torch.int64, 8),
    "I32": (torch.int32, 4),
    "I16": (torch.int16, 2),
    "I8": (torch.int8, 1),
    "U64": (None, 8),
    "U32": (None, 4),
    "U16": (None, 2),
    "U8": (torch.uint8, 1),
    "BOOL": (None, 1),
}
"""By the name in the header: torch's dtype where elements are looked at as numbers, and bytes per element."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore")

    dtype: str
    shape: list[NonNegativeInt]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


class _Header(RootModel[dict[str, _Entry]]):
    pass


def read_safetensors(path: Path) -> Checkpoint:
    """The tensors of one safetensors file. Raises CheckpointError for anything that the format does not allow."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            raise CheckpointError(f"{path} is no safetensors file, or it is cut off: its header does not fit")
        header = _header(path, file.read(length))
    tensors: dict[str, StoredTensor] = {}
    skipped: dict[str, str] = {}
    for name, entry in header.items():
        if entry.dtype not in DTYPES:
            skipped[name] = f"unknown dtype {entry.dtype}"
            continue
        dtype, itemsize = DTYPES[entry.dtype]
        begin, end = entry.data_offsets
        if end - begin != math.prod(entry.shape) * itemsize or 8 + length + end > size:
            raise CheckpointError(f"{path} is damaged or cut off: {name} lies outside of it")
        shape = tuple(entry.shape)
        tensors[name] = StoredTensor(
            name, path, 8 + length + begin, shape, dtype, _label(entry.dtype), itemsize
        )
    return Checkpoint(path, tensors, {}, skipped)


def _header(path: Path, text: bytes) -> dict[str, _Entry]:
    try:
        loaded: Any = json.loads(text)
        if isinstance(loaded, dict):
            loaded.pop("__metadata__", None)
        return _Header.model_validate(loaded).root
    except (ValueError, RecursionError, ValidationError):
        raise CheckpointError(f"{path} is no safetensors file: its header cannot be read") from None


def _label(name: str) -> str:
    dtype = DTYPES[name][0]
    return name.lower() if dtype is None else str(dtype).removeprefix("torch.")
