"""Parameters that stand: the C kernel has stepped them, and steps them again in one call with little Python for each.

A parameter stands from its first step by that kernel until something about it changes: its storage format, layout or
device, its state, the options of its group, or its words. Then it is stepped as at first, and stands again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch import Tensor

from roundoff.kernels import Step, Update, unavailable
from roundoff.kernels.cpu import Standing, Turns, rows_and_bins
from roundoff.watch.statistics import Meter

from .options import Scalars, check_gradient, plan_of
from .outside import Seal
from .strategies import Strategy


@dataclass(frozen=True, slots=True)
class Turn:
    """One parameter whose turn it is, with a gradient, that does not stand."""

    param: Tensor
    group: dict[str, Any]
    plan: Strategy

    @classmethod
    def of(cls, param: Tensor, group: dict[str, Any]) -> Turn:
        """Raises what `check_gradient` and `plan_of` raise."""
        check_gradient(param)
        return cls(param, group, plan_of(param, group))


@dataclass(frozen=True, slots=True)
class _Place:
    """What is known of a parameter that stands. It does not keep the parameter alive."""

    param: weakref.ref[Tensor]
    strategy: str
    standing: Standing


_NO_VERSION = -1
"""Of seals given back: words alone say whether they are broken, on whatever device the parameter is by then."""


class Routine:
    """Which parameters of one optimizer stand, and the words that their last step left."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._places: dict[int, _Place] = {}

    def takes(self, group: dict[str, Any]) -> bool:
        """Whether parameters of a group may stand at all: the C kernel is the one for those on the CPU."""
        return (
            self._backend in ("auto", "cpu")
            and group["arithmetic"] == "fp32"
            and not group["amsgrad"]
            and unavailable("cpu") is None
        )

    def stand(self, turn: Turn, update: Update, count: Tensor, seal: Seal | None) -> bool:
        """Let a parameter stand whose step is done, with the seal put on it; False if C cannot go on with it.

        `count` is the counter of its steps.
        """
        param = turn.param
        if update.param is not param or not param.is_cpu or not self.takes(turn.group):
            return False
        standing = Standing.of(update, count, None if seal is None else seal.bytes)
        if standing is None:
            return False
        places, key = self._places, id(param)
        owner = weakref.ref(param, lambda _: places.pop(key, None))
        places[key] = _Place(owner, turn.group["strategy"], standing)
        return True

    def release(self, param: Tensor) -> Seal | None:
        """Have a parameter stand no longer; returns its seal, if it had one."""
        place = self._places.pop(id(param), None)
        return None if place is None else _seal_of(place)

    def release_all(self) -> dict[Tensor, Seal]:
        """Have none stand; returns the seals of those that had one."""
        places, self._places = self._places, {}
        owners = [(place.param(), _seal_of(place)) for place in places.values()]
        return {param: seal for param, seal in owners if param is not None and seal is not None}

    def begin(self) -> Round:
        """A new step."""
        return Round(self._places)


class Round:
    """One step of those that stand and have a gradient."""

    def __init__(self, places: Mapping[int, _Place]) -> None:
        self.params: list[Tensor] = []
        self._places = places
        self._taken: list[_Place] = []
        self._groups: list[dict[str, Any]] = []
        self._turns = Turns()
        self._counts: Sequence[float] = ()
        self._steps: list[Step] = []
        self._keys: list[int] = []

    def add(self, param: Tensor, grad: Tensor, group: dict[str, Any], kept: Mapping[str, Any] | None) -> bool:
        """Take a parameter in if it stands and nothing about it has changed but perhaps its words."""
        place = self._places.get(id(param))
        if place is None or kept is None or place.strategy != group["strategy"] or place.param() is not param:
            return False
        if not self._turns.add(place.standing, param, grad, kept):
            return False
        self.params.append(param)
        self._taken.append(place)
        self._groups.append(group)
        return True

    def changed(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Look at their words; those that somebody else has changed are left out and given back with their group."""
        if not self.params:
            return []
        self._counts, changed = self._turns.look()
        if not any(changed):
            return []
        left = list(compress(zip(self.params, self._groups, strict=True), changed))
        stay = [not out for out in changed]
        self._turns.keep(stay)
        self.params, self._taken = list(compress(self.params, stay)), list(compress(self._taken, stay))
        self._groups, self._counts = list(compress(self._groups, stay)), list(compress(self._counts, stay))
        return left

    def prepare(self, scalars: Scalars, key_of: Callable[[Tensor, float], int]) -> None:
        """Make the scalars; `key_of` gives the key for the random bits of a parameter's step of that number."""
        self._steps = list(map(scalars.of, self._groups, self._counts))
        if any(place.standing.noisy for place in self._taken):
            members = zip(self.params, self._taken, self._counts, strict=True)
            self._keys = [key_of(p, count) if place.standing.noisy else 0 for p, place, count in members]
        else:
            self._keys = [0] * len(self.params)

    def step(self, meters: dict[Tensor, Meter] | None, *, headroom: bool) -> None:
        """Step them, and measure that if there is a dict for the meters."""
        if not self.params:
            return
        if meters is None:
            self._turns.step(self._steps, self._keys, sums=(None, None))
            return
        rows, bins = rows_and_bins(len(self.params), headroom=headroom)
        self._turns.step(self._steps, self._keys, sums=(rows, bins))
        taken = (None,) * len(self.params) if bins is None else bins.unbind()
        for param, row, histogram in zip(self.params, rows.unbind(), taken, strict=True):
            meter = meters[param] = Meter(param.device, headroom=headroom)
            meter.take(row, histogram)


def _seal_of(place: _Place) -> Seal | None:
    words = place.standing.words
    return None if words is None else Seal(_NO_VERSION, words)
