"""Whether a class does with some rows of a tensor alone what it does with them among all the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from .clone import Cloner
from .parts import Parts
from .replaying import Replayer, cuda_devices

MOST = 1e-3
"""Share of the norm of the rows' update by which it may differ: it is then as good an estimate as any."""


class Apart:
    """Steps a copy of one whole tensor for every kind of parameter that is to be measured by rows, once."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._whole = Parts(optimizer)
        self._replayer = Replayer(self._whole.optimizer)
        self._known: dict[tuple[object, ...], bool] = {}

    def holds(self, parts: Parts, group: int, index: int, u: Tensor) -> bool:
        """Whether `u`, intended for the rows in `parts` alone, is what all rows together intend for them.

        Group and index are those of the parameter in the optimizer. Waits for the device where a kind is new. Raises
        Refused where all rows cannot be stepped on a copy.
        """
        self._whole.refresh()
        there = self._whole.optimizer.param_groups[group]
        param = there["params"][index]
        kind = (group, param.dtype, param.shape)
        if kind not in self._known:
            with torch.random.fork_rng(devices=cuda_devices([param])):
                cloner = Cloner(self._whole.optimizer)
                real = self._replayer.real(cloner, there, index)
                real.second = self._replayer.second(there, index, real.after)
                among, _ = self._replayer.intended(cloner, there, index, real)
            rows = parts.cut(among, self._whole.whole(param)).to(torch.float64)
            difference = (rows - u.to(torch.float64)).norm()
            self._known[kind] = bool(difference <= MOST * rows.norm())
        return self._known[kind]
