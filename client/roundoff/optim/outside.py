"""Notice that a weight was changed between two steps by somebody else, so that stale words are not used.

lo and a master belong to the weight as the last step left it. After a reload or an EMA swap they would move
the new weight back (numerics §3, rule 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from roundoff.kernels import words_in_memory
from roundoff.watch.words import sampled_words


@dataclass(frozen=True, slots=True)
class Seal:
    """A parameter as the last step left it: PyTorch's version counter and a few of its words.

    The words are bytes where the CPU can look at them in place, else a tensor beside the parameter.
    """

    version: int
    words: Tensor | bytes

    @classmethod
    def of(cls, param: Tensor) -> Seal:
        """Seal a parameter now. Nothing waits for the device."""
        return cls(param._version, _words(param))

    def broken(self, param: Tensor) -> bool:
        """Whether sampled words differ.

        Off the CPU the words are compared only where the version counter moved, since comparing waits for
        the device; there, a write through `.data` that leaves the counter alone goes unseen.
        """
        if param.device.type != "cpu" and param._version == self.version:
            return False
        words = _words(param)
        if isinstance(words, Tensor) and isinstance(self.words, Tensor):
            return not torch.equal(words, self.words)
        return _bytes(words) != self.bytes

    @property
    def bytes(self) -> bytes:
        """The words, wherever they are; of those of a device this waits."""
        return _bytes(self.words)


def contradicts(param: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Whether a weight is not what its master stands for, which shows without a seal: after a load, say.

    Within one spacing of bfloat16, so that a model may be resumed in another storage format. A second word cannot
    tell, and it cannot move a weight by more than that either.
    """
    if "master" not in state:
        return False
    master, weight = state["master"], param.detach().to(torch.float32)
    near = torch.maximum(master.abs(), weight.abs()) * 2.0**-7 + 2.0**-24
    return bool(((master - weight).abs() > near).any())


def _words(param: Tensor) -> Tensor | bytes:
    words = words_in_memory(param)
    return sampled_words(param) if words is None else words


def _bytes(words: Tensor | bytes) -> bytes:
    """Of a tensor too: the same parameter may have come to lie otherwise in memory."""
    return words if isinstance(words, bytes) else bytes(words.view(torch.uint8).tolist())
