"""What any optimizer intends and stores: the same class stepped on copies, in wider numbers and in the real ones.

One tensor at a time, in the hook before the real step, so memory is bounded by a few copies of the largest
tensor and training is bit-identical with and without the watch (numerics §5). Sampled words tell after the real step
whether the replay was faithful; where it was not, `fallback` says what is measured instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.metrics import name_some

from .apart import Apart
from .clone import Cloner, Path, Refused, Twin, tensor_at
from .fallback import KEEP, Turns, measure_visible
from .outcome import Outcome, measure_outcome, measure_replay
from .parts import Parts
from .recognise import Second
from .replaying import Replayed, Replayer, cuda_devices
from .soundness import explains, numbers_of, sampled_step, together
from .statistics import Meter
from .terms import decay_rate, does_nothing

Mode = Literal["replay", "compare", "visible"]
"""How a parameter is measured: its step is replayed; or the real outcome is compared with the intended update, since
it is rounded at random; or only what is visible is measured, and nothing is claimed about the intended update."""

Place = tuple[Mapping[str, Any], int]
"""A group of the optimizer, and the number of a parameter in it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Copies of words from before the step, and u if that is known."""

    word: Tensor
    second: Tensor | None = None
    intended: Tensor | None = None


@dataclass(slots=True)
class _Pending:
    """What is known of a parameter between the hooks before and after its step."""

    place: Place
    meter: Meter
    kept: _Kept | None = None
    """What is compared after the step; None where a replay has been measured already."""
    second: Second | None = None
    sampled: dict[Path, Tensor] = field(default_factory=dict)
    """A few words of the parameter and of each tensor of its state that a replay has left."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Numbers that the class keeps for all of them together, as a replay has left them."""
    fits: Tensor | None = None
    at_random: bool = False


class Shadow:
    """Measures every parameter of a foreign optimizer at a sampled step: call `before` and `after` around it.

    `names` are the parameters to measure; `say` is told once, in a sentence, what cannot be measured and why. At most
    `keep` bytes of words are kept through a step for those parameters that cannot be replayed; the rest of them take
    turns from sample to sample. `budget`: bytes of the words that are measured at one step; large tensors are measured
    by rows where more would be needed.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[Tensor, str],
        say: Callable[[str], None],
        *,
        keep: int = KEEP,
        budget: int | None = None,
    ) -> None:
        self._parts = Parts(optimizer, budget)
        self._optimizer = self._parts.optimizer
        self._apart = Apart(self._optimizer)
        self._names = self._parts.names(names)
        self._say = say
        self._replayer = Replayer(self._optimizer)
        self._turns = Turns(keep)
        self._modes: dict[Tensor, Mode] = {}
        self._why: dict[Tensor, str] = {}
        self._pending: dict[Tensor, _Pending] = {}
        self._headroom = True
        self._stepping: set[Tensor] = set()

    @property
    def stepping(self) -> set[Tensor]:
        """Parameters that take part in the step between `before` and `after`; the others had no gradient."""
        return {self._parts.whole(part) for part in self._stepping}

    @property
    def float32_because(self) -> str | None:
        """Why intended updates are computed in binary32 and not wider, None if they are not."""
        return self._replayer.float32_because

    def mode(self, param: Tensor) -> Mode:
        """How a parameter is measured from now on."""
        return self._modes.get(self._parts.part(param), "replay")

    def why(self, param: Tensor) -> str | None:
        """Why only the visible change of a parameter is measured, None if all of it is."""
        return self._why.get(self._parts.part(param))

    def share(self, param: Tensor) -> float:
        """The share of what is held here of a parameter that is measured; its figures are scaled up by it."""
        return self._parts.share(self._parts.part(param))

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, headroom: bool = True) -> None:
        """Take in what is there before a step, and replay it; arguments are those of the step.

        Without `headroom` no histograms are asked for. The optimizer, its state and the random numbers of the
        training stay untouched. Raises only for faults of roundoff itself.
        """
        self.clear()
        self._parts.refresh()
        self._turns.begin()
        whole = refusal(self._optimizer) or _called_with(args, kwargs)
        cloner = None
        if whole is None:
            try:
                cloner = Cloner(self._optimizer)
            except Refused as refused:
                whole = str(refused)
        self._headroom = headroom
        params = (param for group in self._optimizer.param_groups for param in group["params"])
        self._stepping = {param for param in params if whole is not None or param.grad is not None}
        places = list(self._places())
        # What the replays draw, they draw one after the other, as the steps of a loop over the parameters do.
        with torch.random.fork_rng(devices=cuda_devices(self._stepping)):
            for place in places:
                self._take(cloner, place, whole)
        self._tell()

    def after(self) -> dict[Tensor, Meter]:
        """The statistics of the step, by parameter; those are missing that had to wait or were not as replayed."""
        self._parts.refresh()
        pending, self._pending = self._pending, {}
        flags = {param: self._flag(param, one) for param, one in pending.items()}
        doubtful = {param: flag for param, flag in flags.items() if flag is not None}
        faithful = dict(zip(doubtful, together(list(doubtful.values())), strict=True))
        meters = {}
        for param, one in pending.items():
            name = self._coupled(one)
            if name is None and faithful.get(param, True):
                self._finish(param, one)
                meters[self._parts.whole(param)] = one.meter
            elif name is None:
                self._doubt(param, one)
            elif not self._widened(param):
                self._give_way(param, f"all of its parameters are stepped together (by {name})")
        self._tell()
        return meters

    def clear(self) -> None:
        """Let go of all tensors of a step."""
        self._pending, self._stepping = {}, set()

    def _places(self) -> Iterator[Place]:
        for group in self._optimizer.param_groups:
            for index, param in enumerate(group["params"]):
                if param not in self._stepping or param not in self._names:
                    continue
                if not param.dtype.is_floating_point:
                    self._say(
                        f"{self._names[param]} is left out: it does not hold real floating-point numbers"
                    )
                else:
                    yield group, index

    def _take(self, cloner: Cloner | None, place: Place, whole: str | None) -> None:
        group, index = place
        param = group["params"][index]
        meter = Meter(param.device, headroom=self._headroom)
        meter.share = self._parts.share(param)
        found_inf = getattr(self._optimizer, "found_inf", None)
        if isinstance(found_inf, Tensor):
            meter.found_inf = found_inf.detach().reshape(()).clone().to(param.device)
        why = whole or _unfit(param)
        if why is None and cloner is not None and self.mode(param) != "visible":
            try:
                if self.mode(param) == "compare":
                    self._keep_and_compare(cloner, place, meter)
                else:
                    self._replay(cloner, place, meter)
                self._why.pop(param, None)
                return
            except Refused as refused:
                why = str(refused)
        if why is not None and whole is None and self._widened(param):
            return
        if why is not None and whole is None:
            self._give_way(param, why)
        elif whole is not None:
            self._why[param] = whole
        if self._turns.takes(param, param.numel() * param.element_size()):
            self._pending[param] = _Pending(place, meter, _Kept(param.detach().clone()))

    def _replay(self, cloner: Cloner, place: Place, meter: Meter) -> None:
        group, index = place
        param = group["params"][index]
        real = self._replayed(cloner, place)
        u, wide = self._replayer.intended(cloner, group, index, real)
        self._check_rows(place, u, meter)
        real.squares = self._replayer.squares(group, index, wide)
        del wide
        measure_replay(meter, self._optimizer, group, index, real, u)
        one = _Pending(place, meter, None, real.second, at_random=real.at_random)
        one.sampled = sampled_step(real.after.param, real.after.state)
        one.numbers = numbers_of(real.after.optimizer, real.after.optimizer.param_groups[0])
        one.fits = None if real.second is None else _fits(real.after, real.second)
        self._pending[param] = one

    def _keep_and_compare(self, cloner: Cloner, place: Place, meter: Meter) -> None:
        group, index = place
        param = group["params"][index]
        if not self._turns.takes(param, param.numel() * (2 * param.element_size() + 4)):
            return
        real = self._replayed(cloner, place)  # draws its random numbers for the next one
        u, _ = self._replayer.intended(cloner, group, index, real)
        self._check_rows(place, u, meter)
        old = None
        if real.second is not None:
            old = tensor_at(self._optimizer.state.get(param, {}), real.second.path)
        kept = _Kept(param.detach().clone(), None if old is None else old.detach().clone(), u)
        one = _Pending(place, meter, kept, real.second)
        one.numbers = numbers_of(real.after.optimizer, real.after.optimizer.param_groups[0])
        self._pending[param] = one

    def _check_rows(self, place: Place, u: Tensor, meter: Meter) -> None:
        if meter.share == 1:
            return
        number = next(n for n, one in enumerate(self._optimizer.param_groups) if one is place[0])
        if not self._apart.holds(number, place[1], u):
            raise Refused("what its class does with a row depends on the others")

    def _widened(self, param: Tensor) -> bool:
        """Whether a parameter was measured by rows; from the next sample on it will not be, and may be faithful."""
        by_rows = self._parts.share(param) < 1
        if by_rows:
            self._parts.keep_whole(param)
        return by_rows

    def _replayed(self, cloner: Cloner, place: Place) -> Replayed:
        real = self._replayer.real(cloner, *place)
        # Nothing is learned from a step that a loss scaler makes do nothing; its row counts as skipped.
        if not does_nothing(self._optimizer):
            real.second = self._replayer.second(*place, real.after)
        return real

    def _flag(self, param: Tensor, one: _Pending) -> Tensor | None:
        """Whether what was done on copies is what then was done, 0-dim on the device; None if nothing was done."""
        if one.kept is not None:
            u = one.kept.intended
            return None if u is None else explains(one.kept.word, param, u)
        real = sampled_step(param, self._optimizer.state.get(param, {}))
        # A counter that all parameters share may be kept with one of them.
        alone = [(real.get(path, one.sampled.get(path))) for path in real.keys() ^ one.sampled.keys()]
        if any(words is not None and words.numel() > 1 for words in alone):
            return torch.zeros((), dtype=torch.bool, device=param.device)
        same = [(real[path] == one.sampled[path]).all() for path in real.keys() & one.sampled.keys()]
        return torch.stack([*same, *([] if one.fits is None else [one.fits])]).all()

    def _coupled(self, one: _Pending) -> str | None:
        """A number that came out otherwise than for this parameter alone, None if there is none."""
        real = numbers_of(self._optimizer, one.place[0])
        both = real.keys() & one.numbers.keys()
        return next((name for name in sorted(both) if real[name] != one.numbers[name]), None)

    def _finish(self, param: Tensor, one: _Pending) -> None:
        kept = one.kept
        if kept is None:
            return
        if kept.intended is None:
            measure_visible(one.meter, kept.word, param)
            return
        before = _state_with(one.second, kept.second)
        after = self._optimizer.state.get(param, {})
        decay = decay_rate(self._optimizer, one.place[0])
        measure_outcome(one.meter, Outcome(kept.word, before, param, after, kept.intended, one.second, decay))

    def _doubt(self, param: Tensor, one: _Pending) -> None:
        """Measure it in another way from the next sample on."""
        if one.fits is not None and not bool(one.fits):
            self._replayer.doubt(one.place[0], param, self._optimizer.state.get(param, {}))
        elif one.kept is None and one.at_random:
            self._modes[param] = "compare"
        elif not self._widened(param):
            self._give_way(param, "replaying its step did not give what the optimizer then did")

    def _give_way(self, param: Tensor, why: str) -> None:
        self._modes[param], self._why[param] = "visible", why

    def _tell(self) -> None:
        names: dict[str, list[str]] = {}
        for param, why in self._why.items():
            names.setdefault(why, []).append(self._names[param])
        for why, some in names.items():
            layers = "all layers" if len(some) == len(self._names) > 1 else name_some(some)
            self._say(f"only the visible change of {layers} is measured: {why}")


def refusal(optimizer: Optimizer) -> str | None:
    """Why no parameter of this optimizer can be replayed on copies, None if one may try."""
    name = type(optimizer).__name__
    if type(optimizer).step is Optimizer.step:
        return f"{name} has no step of its own"
    for attribute, value in vars(optimizer).items():
        if _is_optimizer(value):
            return f"{name} steps another optimizer ({attribute}); watch that one instead"
    return None


def _is_optimizer(value: Any) -> bool:
    if isinstance(value, Optimizer):
        return True
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value
    return isinstance(items, Iterable) and any(
        isinstance(item, Optimizer) for item in (items if isinstance(value, dict | list | tuple) else ())
    )


def _called_with(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why a step with these arguments cannot be replayed; the first of the positional ones is the optimizer."""
    given = [value for value in (*args[1:], *kwargs.values()) if value is not None]
    if not given:
        return None
    if any(isinstance(value, Tensor) for value in given):
        return "a step for one parameter at a time, in the backward pass, cannot be replayed"
    if any(callable(value) for value in given):
        return "a step with a closure computes its gradients inside, so it cannot be replayed"
    return "a step with arguments cannot be replayed"


def _unfit(param: Tensor) -> str | None:
    if param.grad is not None and param.grad.layout != torch.strided:
        return "only dense gradients are replayed"
    if param.dtype.itemsize > 4:
        return "only float32 and narrower weights have wider numbers to be compared with"
    return None


def _fits(after: Twin, second: Second) -> Tensor | None:
    tensor = tensor_at(after.state, second.path)
    return None if tensor is None else second.fits(after.param.detach(), tensor)


def _state_with(second: Second | None, word: Tensor | None) -> dict[Any, Any]:
    """A state that holds a second word alone, at its place."""
    if second is None or word is None:
        return {}
    state: Any = word
    for key in reversed(second.path):
        state = {key: state}
    whole: dict[Any, Any] = state
    return whole
