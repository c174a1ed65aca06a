"""One parameter of any optimizer stepped on copies, in the real dtypes and in wider ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .clone import Cloner, Path, Refused, Twin, tensor_at, without_compiling
from .parts import Parts
from .peculiar import joined, wide_settings
from .recognise import Second, candidates, has_integers, recognise
from .rows import OF_ONE
from .soundness import agrees, alike
from .terms import does_nothing, follows_squares, moment_of, unscaled
from .words import sampled_words

Signature = tuple[Any, ...]
"""What parameters have in common that a class treats alike: dtype, group, and what is kept for them."""

OTHERWISE = "what it does in wider numbers is something else than what it does in the real ones"

DOUBTS = 2
"""So many times a recognised second word may turn out not to be one before none is looked for any more."""

LOOKED_AT = 1 << 16
"""Elements that tell whether a class keeps a second word."""

TRIES = 20
"""Samples at which a second word is looked for where an integer might be one: in a warm-up from a learning rate of 0
steps are too small at first to tell."""


@dataclass(slots=True)
class Replayed:
    """One parameter stepped on a copy as it will really be. `squares`: it has a second moment as Adam's."""

    after: Twin
    at_random: bool
    second: Second | None = None
    squares: bool = False


class Replayer:
    """Replays the steps of one optimizer, parameter by parameter, and remembers what it has found out about it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._wide: dict[Signature, torch.dtype] = {}
        self._sound: set[Signature] = set()
        self._seconds: dict[Signature, Second | None] = {}
        self._tries: dict[Signature, int] = {}
        self._doubts: dict[Signature, int] = {}
        self._squares: dict[Signature, bool] = {}
        self.float32_because: str | None = None
        """Why u is computed in binary32 and has its error, None where it is computed in binary64."""

    def real(self, cloner: Cloner, group: Mapping[str, Any], index: int) -> Replayed:
        """A copy stepped as it will really be stepped. Raises Refused where the class cannot step a copy."""
        twin = cloner.twin(group, index)
        random = _random_state(twin.param)
        try:
            twin.step()
        except Exception as error:
            raise Refused(f"its step cannot be taken on a copy ({_short(error)})") from error
        drawn = zip(random, _random_state(twin.param), strict=True)
        return Replayed(twin, at_random=any(not torch.equal(before, after) for before, after in drawn))

    def second(self, group: Mapping[str, Any], index: int, after: Twin) -> Second | None:
        """The parameter's second word, recognised from a copy that has been stepped once."""
        param = group["params"][index]
        signature = self._signature(param, group, after.state)
        if signature not in self._seconds:
            if next(candidates(after.param, after.state), None) is None:
                return None
            with _forked(param):
                stepper = _Stepper.of(after, param.grad)
                found = recognise(stepper.param, stepper.state, stepper)
            tries = self._tries[signature] = self._tries.get(signature, 0) + 1
            if found is None and tries < TRIES and has_integers(param, after.state):
                return None
            self._seconds[signature] = found
        return self._seconds[signature]

    def doubt(self, group: Mapping[str, Any], param: Tensor, state: Mapping[Any, Any]) -> None:
        """What was taken for a second word is none for this parameter now: look again, or no more."""
        signature = self._signature(param, group, state)
        self._doubts[signature] = self._doubts.get(signature, 0) + 1
        self._seconds.pop(signature, None)
        if self._doubts[signature] >= DOUBTS:
            self._seconds[signature] = None

    def intended(
        self, cloner: Cloner, group: Mapping[str, Any], index: int, real: Replayed
    ) -> tuple[Tensor, Twin]:
        """u in the parameter's shape, and the copy that was stepped for it in wide numbers.

        In binary64 where the class takes it and then does the same, else in binary32: then u has the error of a
        difference of two weights in binary32. Raises Refused where neither is wider than the parameter, or what
        the class does in wider numbers is something else than the step `real` of the copy in the real ones.
        """
        param = group["params"][index]
        # What a class makes at its first step may be taken otherwise when it is there already.
        fresh = not self._optimizer.state.get(param)
        signature = (*self._signature(param, group, real.after.state), fresh)
        dtype = self._wide.get(signature, torch.float64)
        narrow = param.dtype.itemsize < 4
        try:
            found = self._intended(cloner, group, index, real.second, dtype)
        except Refused:
            raise
        except Exception as error:
            if dtype != torch.float64 or not narrow:
                raise Refused(f"it cannot be stepped in wider numbers ({_short(error)})") from error
            dtype = self._wide[signature] = torch.float32
            self.float32_because = _short(error)
            found = self._in_float32(cloner, group, index, real.second)
        if signature in self._sound or (sound := self._agrees(param, real, found[0])) is None:
            return found
        if not sound:
            if dtype != torch.float64 or not narrow:
                raise Refused(OTHERWISE)
            second_try = self._in_float32(cloner, group, index, real.second)
            if self._agrees(param, real, second_try[0]):
                self._wide[signature], self.float32_because = (
                    torch.float32,
                    "in float64 it does something else",
                )
                found = second_try
            elif not alike(found[0], second_try[0]):  # else rounding is to blame, which is what is measured
                raise Refused(OTHERWISE)
        self._sound.add(signature)
        return found

    def _in_float32(
        self, cloner: Cloner, group: Mapping[str, Any], index: int, second: Second | None
    ) -> tuple[Tensor, Twin]:
        try:
            return self._intended(cloner, group, index, second, torch.float32)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"it cannot be stepped in wider numbers ({_short(error)})") from error

    def _agrees(self, param: Tensor, real: Replayed, u: Tensor) -> bool | None:
        state, after = self._optimizer.state.get(param, {}), real.after
        if real.second is None:
            return agrees(param, after.param, None, u, at_random=real.at_random)
        applied = real.second.value(after.param, after.state) - real.second.value(param, state)
        return agrees(param, after.param, applied, u, at_random=real.at_random)

    def _intended(
        self, cloner: Cloner, group: Mapping[str, Any], index: int, second: Second | None, dtype: torch.dtype
    ) -> tuple[Tensor, Twin]:
        param = group["params"][index]
        state = self._optimizer.state.get(param, {})
        weight: Tensor = param.detach().to(dtype)
        replaced: dict[Path, Tensor | None] = {}
        if second is not None:
            weight = second.value(param, state).to(dtype)
            replaced = {second.path: second.neutral(weight, tensor_at(state, second.path))}
        replaced.update(joined(state, second))
        settings = wide_settings(group, param.dtype)
        twin = cloner.twin(group, index, dtype, weight=weight, replaced=replaced, settings=settings)
        with _forked(param), without_compiling():
            twin.step()
        whole = twin.param.detach() if second is None else second.whole(twin.param.detach(), twin.state)
        # The difference in binary64: in binary32 it would be a multiple of the weight's own spacing there.
        u = whole - weight
        if param.dtype == torch.float32 and _in_float32(whole) and bool(sampled_words(u).any()):
            raise Refused(
                "it computes in float32 whatever it is given, and so tells nothing of float32 weights"
            )
        return (u if param.dtype == torch.float32 else u.to(torch.float32)), twin

    def squares(self, group: Mapping[str, Any], index: int, wide: Twin) -> bool:
        """Whether the class keeps a second moment of the gradient alone, as Adam does."""
        param = group["params"][index]
        state = self._optimizer.state.get(param, {})
        moment = moment_of(group, state, wide.state)
        if moment is None or param.grad is None or does_nothing(self._optimizer):
            return False
        signature = self._signature(param, group, wide.state)
        if signature not in self._squares:
            found = follows_squares(moment, unscaled(self._optimizer, param.grad))
            if found is None:
                return False
            self._squares[signature] = found
        return self._squares[signature]

    def _signature(self, param: Tensor, group: Mapping[str, Any], state: Mapping[Any, Any]) -> Signature:
        places = frozenset((path, tensor.dtype) for path, tensor in candidates(param, state))
        number = next((n for n, one in enumerate(self._optimizer.param_groups) if one is group), -1)
        return param.dtype, number, places


class _Stepper:
    """Steps made-up words from where a stepped copy stands, with the same gradient and random numbers each time.

    Of a large tensor it steps some rows; all of them where the class cannot step those alone.
    """

    def __init__(self, after: Twin, grad: Tensor | None, *, most: int | None = LOOKED_AT) -> None:
        budget = None if most is None else OF_ONE * most * after.param.element_size()
        parts = Parts(after.optimizer, budget)
        self._cloner = Cloner(parts.optimizer)
        self._group = parts.optimizer.param_groups[0]
        self._grad = None if grad is None else parts.cut(grad, after.param)
        self.param: Tensor = self._group["params"][0]
        """Where the made-up words are put: of the shape, dtype and device that they must have."""
        self.state: Mapping[Any, Any] = parts.optimizer.state.get(self.param) or {}

    @classmethod
    def of(cls, after: Twin, grad: Tensor | None) -> _Stepper:
        """Of some rows if they can be stepped alone."""
        some = cls(after, grad)
        if some.param.shape == after.param.shape:
            return some
        try:
            some(some.param.detach(), {})
        except Exception:  # noqa: BLE001 (a class that looks at all rows may fail in any way)
            return cls(after, grad, most=None)
        return some

    def __call__(
        self, words: Tensor, replaced: Mapping[Path, Tensor | None]
    ) -> tuple[Tensor, Mapping[Any, Any]]:
        twin = self._cloner.twin(self._group, 0, weight=words, gradient=self._grad, replaced=replaced)
        with _forked(words):
            twin.step()
        return twin.param.detach(), twin.state


def _in_float32(value: Tensor) -> bool:
    """Whether sampled values of float64 all are float32 numbers: waits for the device."""
    words = sampled_words(value).view(torch.float64)
    return bool((words.to(torch.float32).to(torch.float64) == words).all())


def _forked(param: Tensor) -> Any:
    return torch.random.fork_rng(devices=cuda_devices([param]))


def _random_state(param: Tensor) -> list[Tensor]:
    """The state of the generators that a step of this parameter may draw from."""
    if param.device.type != "cuda":
        return [torch.get_rng_state()]
    return [torch.get_rng_state(), torch.cuda.get_rng_state(param.device)]


def cuda_devices(tensors: Any) -> list[int]:
    """The numbers of the GPUs that tensors lie on."""
    return sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})


def _short(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__
