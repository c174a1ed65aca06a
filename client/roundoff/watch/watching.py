"""`Watch`: hooks around an optimizer's step that measure every n-th one and leave nothing behind."""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.delivery.sample import GroupSetting, Sample, Sink
from roundoff.metrics import Verdict
from roundoff.wire import Layer

from .history import History
from .roster import roster
from .shadow import measure_replay, replay
from .statistics import Meter
from .words import sampled_words


def watch(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    every: int = 10,
    first_step: int | None = None,
    sink: Sink | None = None,
) -> Watch:
    """Watch an optimizer: measure every `every`-th step of it, per parameter tensor.

    Args:
        model: gives the layers their names.
        optimizer: any `torch.optim.Optimizer` over the model's parameters. `CollageAdamW` measures in its own
            pass; any other is replayed on copies, one tensor at a time, just before its real step.
        every: optimizer steps from one sample to the next.
        first_step: number of the next optimizer step, counted from 0; None reads it off the optimizer.
        sink: where samples go. Without one a verdict table is printed when the program ends.

    Training is bit-identical with and without a watch, and nothing in here raises during a step. Raises
    ValueError if `every` is below 1, or a parameter of the optimizer has no name in the model.
    """
    if every < 1:
        raise ValueError(f"every must be 1 or larger, got {every}")
    watching = Watch(model, optimizer, every, first_step, sink)
    if sink is None:
        watching.print_at_exit()
    return watching


class Watch:
    """A running watch. Use `watch` to make one; `detach`, or leave the `with` block, to end it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: int,
        first_step: int | None,
        sink: Sink | None,
    ) -> None:
        self.every = every
        self._optimizer = optimizer
        self._sink = sink
        self._members = roster(model, optimizer)
        self._index = {member.param: number for number, member in enumerate(self._members)}
        self._start = {member.param: sampled_words(member.param) for member in self._members}
        self.step = _steps_taken(optimizer) if first_step is None else first_step
        """Number of the next optimizer step, counted from 0."""
        self.history = History([member.name for member in self._members])
        self._meters: dict[Tensor, Meter] = {}
        self._replayed: dict[Tensor, Tensor] = {}
        self._settings: list[GroupSetting] = []
        self._said: set[str] = set()
        if sink is not None:
            sink.declare(self.layers)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @property
    def layers(self) -> list[Layer]:
        """The watched parameter tensors as they are declared to a server."""
        return [member.declared(number) for number, member in enumerate(self._members)]

    def verdict(self) -> Verdict:
        """The verdict so far, in words and with the numbers behind it."""
        return self.history.verdict()

    def report(self) -> None:
        """Print the verdict table now."""
        from .report import print_report

        print_report(self.history)

    def print_at_exit(self) -> None:
        """Print the verdict table when the program ends, unless detached before."""
        reference = weakref.ref(self)

        def at_exit() -> None:
            watching = reference()
            if watching is not None and watching._hooks:
                watching.report()

        atexit.register(at_exit)

    def detach(self) -> None:
        """End the watch: no hook, no tensor stays behind; the verdict so far can still be read."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._clear()
        self._index, self._start, self._members = {}, {}, []
        self._sink = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.step % self.every:
            return
        try:
            self._settings = _settings(optimizer)
            if hasattr(optimizer, "meters"):
                optimizer.meters = self._meters
            elif (args[1:] and args[1] is not None) or kwargs.get("closure") is not None:
                self._say("a step with a closure computes its gradients inside, so it cannot be replayed")
            else:
                self._replay_all(optimizer)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        step = self.step
        self.step = step + 1
        if step % self.every:
            return
        try:
            if hasattr(optimizer, "meters"):
                optimizer.meters = None
            self._check_replay()
            self._collect(step)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)
        finally:
            self._clear()

    def _replay_all(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for index, param in enumerate(group["params"]):
                if param.grad is None or param not in self._index:
                    continue
                if param.grad.is_sparse or not param.dtype.is_floating_point or param.dtype.itemsize > 4:
                    name = self._members[self._index[param]].name
                    self._say(f"{name} is left out: only dense float32 and narrower parameters are measured")
                    continue
                done = replay(optimizer, group, index)
                meter = self._meters[param] = Meter(param.device)
                measure_replay(meter, optimizer, group, index, done)
                self._replayed[param] = sampled_words(done.after)

    def _check_replay(self) -> None:
        for param, words in self._replayed.items():
            if not torch.equal(sampled_words(param), words):
                name = self._members[self._index[param]].name
                self._say(
                    f"replaying the step of {name} did not give what the optimizer then did; its sums may be off"
                )

    def _collect(self, step: int) -> None:
        if not self._meters:
            return
        members = [
            (self._index[param], meter) for param, meter in self._meters.items() if param in self._index
        ]
        members.sort(key=lambda member: member[0])
        for number, meter in members:
            start, now = self._start[self._members[number].param], sampled_words(self._members[number].param)
            meter.add(frozen=torch.count_nonzero(now == start), frozen_of=start.numel())
        indices = [number for number, _ in members]
        sums = torch.stack([meter.row() for _, meter in members])
        headroom = torch.stack([meter.bins.flatten() for _, meter in members])
        sample = Sample(step, indices, sums, headroom, self._settings)
        self.history.take(sample)
        if self._sink is not None:
            self._sink.sample(sample)

    def _clear(self) -> None:
        self._meters, self._replayed, self._settings = {}, {}, []

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _warn(what)

    def _give_up(self, error: Exception) -> None:
        self.detach()
        _warn(f"watching stopped, training goes on unwatched ({type(error).__name__}: {error})")


def _warn(what: str) -> None:
    """Warn, but never raise into a step, not even where warnings are errors."""
    try:
        warnings.warn(f"roundoff: {what}", stacklevel=3)
    except Warning:
        logging.getLogger("roundoff").warning(what)


def _steps_taken(optimizer: Optimizer) -> int:
    """Steps that the optimizer has behind it, read off its state; 0 where it counts none."""
    counts = [state["step"] for state in optimizer.state.values() if "step" in state]
    return int(max((float(count) for count in counts), default=0))


def _settings(optimizer: Optimizer) -> list[GroupSetting]:
    return [
        GroupSetting(number, float(group["lr"]), float(group.get("weight_decay", 0.0)))
        for number, group in enumerate(optimizer.param_groups)
    ]
