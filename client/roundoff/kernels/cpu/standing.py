"""Tensors whose next step is like their last: what stays the same is kept packed, the rest is read at every step.

Addresses are never kept: those of every tensor are read again before each call, after a look at what they point to.
What C writes down beside a tensor is a few of its words, so that a change between two steps is noticed.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, compress
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..step import Step, Update
from .jobs import SCALARS, WORDS, kinds_of, scalars_of, tensors_of
from .layout import layout_of
from .library import SAMPLED, library
from .run import threads

_STANDING = struct.Struct(f"=q{SAMPLED}q7i{4 * SAMPLED}s4x")
_SETTING = struct.Struct(f"={SCALARS}q")
_FIELDS = 3
"""Of struct turn: its standing, the key for random bits, the number of its setting."""
_COUNT = 2
"""Where the counter is among the tensors of one turn: parameter, gradient, counter, state."""

SIZES = {"standing": _STANDING.size, "setting": _SETTING.size, "turn": 8 * _FIELDS}
"""Bytes of the structures that source/block.h declares."""

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""Tensors whose memory is what it seems to be; subclasses may be anything."""


class Standing:
    """One parameter as C steps it again and again: how it and its state lie in memory, and its last words."""

    def __init__(self, update: Update, count: Tensor, words: bytes | None) -> None:
        param = update.param
        kinds = kinds_of(param, update.strategy)
        self.smallest = kinds.smallest
        """What v can hold, above 0."""
        self.noisy = update.noise is not None
        """Whether every step needs a key for random bits."""
        self._taken = min(param.numel(), SAMPLED) * param.element_size()
        names = [next((name for name in some if update.strategy.keeps(name)), "") for some in WORDS]
        kept = [name for name in names if name]
        self.state = itemgetter("step", *kept)
        """The tensors that C works on beside parameter and gradient, from the parameter's state."""
        self.tensors = 3 + len(kept)
        """How many that makes."""
        # A gradient lies as its parameter does, or is made to.
        layout = layout_of(param, param.detach(), count, *(update.state[name] for name in kept))
        self.alike = layout.check
        """Whether parameter, gradient and state still lie as they did."""
        places = _places(param)
        packed = _STANDING.pack(
            param.numel(),
            *places,
            *(0 for _ in range(SAMPLED - len(places))),
            *(kinds.format, kinds.weight, kinds.second),
            *(int(bool(name)) for name in names[2:]),
            int(words is not None),
            words or b"",
        )
        self._memory = ctypes.create_string_buffer(packed, len(packed))
        self.address = ctypes.addressof(self._memory)
        """Of struct standing."""

    @classmethod
    def of(cls, update: Update, count: Tensor, words: bytes | None) -> Standing | None:
        """What stays of an update that was just done; None if C does not take it. `count` is the step's counter.

        `words` are those of `watch.words.sampled_words` after it, None where changes are no matter.
        """
        tensors = [update.param, count, *update.state.values()]
        if any(type(tensor) not in _PLAIN for tensor in tensors):
            return None
        if count.dtype != torch.float32 or count.numel() != 1 or count.device.type != "cpu":
            return None
        if tensors_of(update, has_float16=library().has_float16) is None:
            return None
        return cls(update, count, words)

    @property
    def words(self) -> bytes | None:
        """The words that the last step left, None where changes are no matter."""
        *_, sealed, words = _STANDING.unpack(self._memory.raw)
        taken: bytes = words[: self._taken]
        return taken if sealed else None


class Turns:
    """The turns of one step: tensors that stand, with a gradient. All sequences are in the order of `add`."""

    def __init__(self) -> None:
        self._standing: list[Standing] = []
        self._tensors: list[Tensor] = []
        self._addresses = array("Q")

    def add(self, standing: Standing, param: Tensor, grad: Tensor, kept: Mapping[str, Any]) -> bool:
        """Take one in, unless something of it no longer is what it was."""
        try:
            tensors = (param, grad, *standing.state(kept))
        except KeyError:
            return False
        if not standing.alike(*tensors):
            if type(grad) is not Tensor or grad.dtype != param.dtype or grad.shape != param.shape:
                return False
            tensors = (param, torch.empty_like(param, requires_grad=False).copy_(grad), *tensors[2:])
            if not standing.alike(*tensors):
                return False
        self._tensors += tensors
        self._standing.append(standing)
        return True

    def look(self) -> tuple[Sequence[float], Sequence[int]]:
        """Which step of each tensor this is, and 1 for those whose words are not those that the last step left.

        Tensors that share a counter have to step one after the other, so that they count as changed.
        """
        total = len(self._standing)
        self._addresses = array("Q", map(Tensor.data_ptr, self._tensors))
        turns = self._turns([0] * total, [0] * total)
        counts, changed = array("f", bytes(4 * total)), array("b", bytes(total))
        library().look(_address(turns), _address(self._addresses), total, _address(counts), _address(changed))
        counters = [self._addresses[first + _COUNT] for first in self._firsts()]
        if len(set(counters)) < total:
            shared = {counter for counter, times in Counter(counters).items() if times > 1}
            changed = array("b", [out or at in shared for out, at in zip(changed, counters, strict=True)])
        return counts, changed

    def keep(self, wanted: Sequence[bool]) -> None:
        """Leave the others out."""
        tensors: list[Tensor] = []
        for first, standing in compress(zip(self._firsts(), self._standing, strict=True), wanted):
            tensors += self._tensors[first : first + standing.tensors]
        self._tensors, self._standing = tensors, list(compress(self._standing, wanted))
        self._addresses = array("Q", map(Tensor.data_ptr, tensors))

    def step(
        self, steps: Sequence[Step], keys: Sequence[int], *, sums: tuple[Tensor | None, Tensor | None]
    ) -> None:
        """Step them all and count the step. `steps` and `keys` are theirs; rows and bins of `sums` are added to.

        Raises MemoryError before anything was changed.
        """
        settings: dict[tuple[int, float], int] = {}
        packed = bytearray()
        numbers = []
        for standing, step in zip(self._standing, steps, strict=True):
            key = id(step), standing.smallest
            number = settings.get(key)
            if number is None:
                number = settings[key] = len(settings)
                packed += _SETTING.pack(*scalars_of(step, standing.smallest), int(bool(step.weight_decay)))
            numbers.append(number)
        turns = self._turns(keys, numbers)
        scalars = array("B", packed)
        rows, bins = (0 if tensor is None else tensor.data_ptr() for tensor in sums)
        library().step_standing(
            _address(turns),
            _address(self._addresses),
            len(numbers),
            _address(scalars),
            (rows, bins),
            threads(),
        )

    def _turns(self, keys: Sequence[int], settings: Sequence[int]) -> array[int]:
        """struct turn of each."""
        turns = array("Q", bytes(8 * _FIELDS * len(keys)))
        turns[0::_FIELDS] = array("Q", [standing.address for standing in self._standing])
        turns[1::_FIELDS] = array("Q", keys)
        turns[2::_FIELDS] = array("Q", settings)
        return turns

    def _firsts(self) -> Iterator[int]:
        """Where the tensors of each begin."""
        return accumulate((standing.tensors for standing in self._standing[:-1]), initial=0)


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]


def _places(param: Tensor) -> list[int]:
    """Where the words of `watch.words.sampled_words` lie, in elements from the first."""
    numel = param.numel()
    last = min(numel, SAMPLED) - 1
    places = []
    for number in range(last + 1):
        left, place = number * (numel - 1) // max(last, 1), 0
        for size, stride in zip(reversed(param.shape), reversed(param.stride()), strict=True):
            left, index = divmod(left, size)
            place += index * stride
        places.append(place)
    return places
