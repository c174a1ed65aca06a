"""Files of `torch.save`, looked at without running a pickle's code and without loading the tensors."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .tensors import Checkpoint, CheckpointError, StoredTensor


def read_torch(path: Path) -> Checkpoint:
    """The tensors of one file of `torch.save`, and the numbers beside them, by their keys joined with dots.

    Raises CheckpointError for other files, for what torch's safe unpickler refuses, and for the format before
    PyTorch 1.6.
    """
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path} is no file of torch.save, or of a version before 1.6: load it with torch and save it again"
        )
    content = _structure(path)
    tensors: dict[str, StoredTensor] = {}
    numbers: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name, value in _leaves(content, ()):
        if not isinstance(value, Tensor):
            numbers[name] = value
            continue
        stored = _stored(path, name, value)
        if isinstance(stored, str):
            skipped[name] = stored
        else:
            tensors[name] = stored
    return Checkpoint(path, tensors, numbers, skipped)


def _structure(path: Path) -> Any:
    """The saved object with tensors that know where their data lie but hold none."""
    try:
        return torch.load(path, weights_only=True, map_location="meta")
    except UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path} holds more than tensors and numbers, and is not unpickled since that may run any code: "
            f"{reason} Save a state dict instead."
        ) from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _leaves(value: Any, at: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | bool | int | float | str):
        yield ".".join(at) or "tensor", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, (*at, str(index)))


def _stored(path: Path, name: str, tensor: Tensor) -> StoredTensor | str:
    """Where a tensor lies, or why it is not read."""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided:
        return "not a plain dense tensor"
    start = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if start is None:
        return "its place in the file is unknown (needs torch 2.7 or later)"
    itemsize = tensor.element_size()
    if not _dense(tensor):
        return "a view with gaps or repetitions"
    offset = start + itemsize * int(tensor.storage_offset())
    known = None if tensor.is_complex() or tensor.dtype == torch.bool or tensor.is_quantized else tensor.dtype
    return StoredTensor(
        name,
        path,
        offset,
        tuple(tensor.shape),
        known,
        str(tensor.dtype).removeprefix("torch."),
        itemsize,
        tuple(tensor.stride()) if not tensor.is_contiguous() else (),
    )


def _dense(tensor: Tensor) -> bool:
    """Whether its elements fill a range of the storage, each place once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True
