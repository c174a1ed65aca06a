"""Bytes that tensors hold, seen from outside: whatever an optimizer keeps, and wherever it hides it, counts."""

from __future__ import annotations

import gc

import torch._dynamo  # noqa: F401 (the first optimizer loads it, a hundred thousand objects)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def ignore_what_lives() -> None:
    """Leave what is there now, mostly imported code, out of every later count: it need not be walked again."""
    gc.collect()
    gc.freeze()


def living_bytes() -> int:
    """Bytes of the storages of all tensors that live in this process, each storage once.

    Those that only stand for others (wrappers, fakes, meta tensors) hold nothing themselves. Memory that is not
    a tensor's, such as a kernel's scratch space, is not seen.
    """
    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        # Not isinstance: it asks lazy proxies for their class, and some then import what they stand for.
        if not issubclass(type(thing), Tensor) or not _holds_memory(thing):
            continue
        storage = thing.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _holds_memory(tensor: Tensor) -> bool:
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return False
    return not is_traceable_wrapper_subclass(tensor)
