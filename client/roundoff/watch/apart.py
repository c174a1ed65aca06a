"""Whether a class does with some rows of a tensor alone what it does with them among others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from .clone import Cloner
from .parts import Parts
from .replaying import Replayer, cuda_devices
from .rows import OF_ONE

FEWER = 3
"""Of the measured rows one in so many is stepped alone."""

MOST = 1e-3
"""Share of the norm of their update by which it may differ: it is then as good an estimate as any."""


class Apart:
    """Steps a copy of fewer rows still, once for every kind of parameter of which some rows are measured.

    Not a copy of all rows: those are what there may be no room for.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._known: dict[tuple[object, ...], bool] = {}

    def holds(self, group: int, index: int, u: Tensor) -> bool:
        """Whether `u`, the intended update of the measured rows, is for some of them what these intend alone.

        Group and index are those of the parameter in the optimizer, which holds measured rows only. Waits for the
        device where a kind is new. Raises Refused where fewer rows cannot be stepped on a copy.
        """
        param = self._optimizer.param_groups[group]["params"][index]
        kind = (group, param.dtype, param.shape)
        if kind not in self._known:
            self._known[kind] = self._same(param, group, index, u)
        return self._known[kind]

    def _same(self, param: Tensor, group: int, index: int, u: Tensor) -> bool:
        fewer = Parts(self._optimizer, OF_ONE * (param.numel() * param.element_size() // FEWER))
        if fewer.part(param) is param:
            return False
        there = fewer.optimizer.param_groups[group]
        with torch.random.fork_rng(devices=cuda_devices([param])):
            cloner, replayer = Cloner(fewer.optimizer), Replayer(fewer.optimizer)
            real = replayer.real(cloner, there, index)
            real.second = replayer.second(there, index, real.after)
            alone, _ = replayer.intended(cloner, there, index, real)
        among = fewer.cut(u, param).to(torch.float64)
        return bool((among - alone.to(torch.float64)).norm() <= MOST * among.norm())
