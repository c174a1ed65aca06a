"""`Watch`: hooks around an optimizer's step that measure every n-th one and leave nothing behind."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from roundoff.delivery.sample import GroupSetting, Sample, Sink
from roundoff.metrics import ROW, Verdict
from roundoff.telling import warn
from roundoff.wire import Layer

from .closures import Arguments, closure_of, followed_by, searches
from .history import History
from .outlook import Outlook, Schedule, outlook, schedules_of
from .roster import roster
from .shadow import measure_replay, refusal, replay
from .statistics import Meter
from .words import sampled_words
from .wrappers import own_optimizer

_FROZEN, _FROZEN_OF = ROW.index("frozen"), ROW.index("frozen_of")


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
        optimizer = own_optimizer(optimizer)
        self._self_measuring = _self_measuring(optimizer)
        self._sink = sink
        self._members = roster(model, optimizer)
        self._index = {member.param: number for number, member in enumerate(self._members)}
        self._start = {member.param: sampled_words(member.param) for member in self._members}
        self.step = _steps_taken(optimizer) if first_step is None else first_step
        """Number of the next optimizer step, counted from 0."""
        self.history = History([member.name for member in self._members], [m.group for m in self._members])
        self._meters: dict[Tensor, Meter] = {}
        self._replayed: dict[Tensor, Tensor] = {}
        self._settings: list[GroupSetting] = []
        self._said: set[str] = set()
        self._over = False
        self._at_exit: Callable[[], None] | None = None
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

    def forecast(self, schedule: Schedule | LRScheduler, steps: int | None = None) -> Outlook:
        """When each layer and the model will have lost 10, 50 and 90 % of their updates, or half of the descent.

        `schedule` is a table of learning rates by optimizer step, for all groups, or the run's own scheduler and how
        many of its `steps` to look at. Made from the newest sample (numerics §6); waits for the device. Raises
        ValueError before the first sample, after `detach`, and for a scheduler that goes by a measured loss.
        """
        if self.history.newest is None:
            raise ValueError(
                "a forecast needs a sample: call it after the first watched step and before detach()"
            )
        groups = sorted({member.group for member in self._members})
        return outlook(self.history.newest, self.layers, schedules_of(schedule, groups, self.step, steps))

    def report(self) -> None:
        """Print the verdict table now."""
        from .report import print_report

        print_report(self.history)

    def print_at_exit(self) -> None:
        """Print the verdict table when the program ends, unless detached before."""
        history = self.history  # not the watch: it holds the model

        def at_exit() -> None:
            from .report import print_report

            print_report(history)

        self._at_exit = at_exit
        atexit.register(at_exit)

    def detach(self) -> None:
        """End the watch: no hook, no tensor stays behind; the verdict so far can still be read."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        self._stop()

    def _stop(self) -> None:
        """Let go of everything but the hooks, which cannot be removed while a step walks through them."""
        self._over = True
        if self._self_measuring is not None:
            self._self_measuring.meters = None
        self._clear()
        self._index, self._start, self._members = {}, {}, []
        self._sink = self.history.newest = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        if self.step % self.every or self._over:
            return None
        try:
            self._settings = _settings(optimizer)
            if self._self_measuring is not None:
                # Another watch may have asked already: then both read the same meters.
                asked = self._self_measuring.meters
                self._meters = self._self_measuring.meters = {} if asked is None else asked
            elif closure_of(args, kwargs) is None:
                self._replay_all(optimizer)
            elif searches(optimizer):
                self._say(f"{type(optimizer).__name__} evaluates its closure many times a step: not measured")
            else:
                return followed_by(lambda: self._replay_safely(optimizer), args, kwargs)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)
        return None

    def _replay_safely(self, optimizer: Optimizer) -> None:
        try:
            self._replay_all(optimizer)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        step = self.step
        self.step = step + 1
        if step % self.every or self._over:
            return
        try:
            if self._self_measuring is not None:
                self._self_measuring.meters = None
            self._check_replay()
            self._collect(step)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)
        finally:
            self._clear()

    def _replay_all(self, optimizer: Optimizer) -> None:
        if (why := refusal(optimizer)) is not None:
            self._say(f"nothing is measured: {why}")
            return
        for group in optimizer.param_groups:
            for index, param in enumerate(group["params"]):
                if param.grad is None:
                    continue
                if param not in self._index:
                    self._say(
                        "parameters added after the watch began are not measured; detach and watch again"
                    )
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
        if not self._replayed:
            return
        # One wait for the device, not one a tensor.
        flags = [(sampled_words(param) == words).all().cpu() for param, words in self._replayed.items()]
        for param, faithful in zip(self._replayed, torch.stack(flags).tolist(), strict=True):
            if not faithful:
                name = self._members[self._index[param]].name
                del self._meters[param]
                self._say(f"{name} is left out: replaying its step did not give what the optimizer then did")

    def _collect(self, step: int) -> None:
        if not self._meters:
            return
        for meter in self._meters.values():
            if meter.error is not None:
                raise meter.error
        rows, bins, indices = [], [], []
        for number, member in enumerate(self._members):
            measured = self._meters.get(member.param)
            if measured is None and member.param.grad is not None:
                continue  # it has stepped, and could not be measured
            meter = measured or Meter(member.param.device)
            if measured is None:  # no gradient: nothing was attempted
                meter.add(numel=member.param.numel())
            start = self._start[member.param]
            row = meter.row()  # not the meter, which another watch may read as well
            row[_FROZEN] = torch.count_nonzero(sampled_words(member.param) == start)
            row[_FROZEN_OF] = start.numel()
            rows.append(row)
            bins.append(meter.bins.flatten())
            indices.append(number)
        home = rows[0].device
        sums = torch.stack([row.to(home, non_blocking=True) for row in rows])
        headroom = torch.stack([histogram.to(home, non_blocking=True) for histogram in bins])
        sample = Sample(step, indices, sums, headroom, self._settings)
        self.history.take(sample)
        if self._sink is not None:
            self._sink.sample(sample)

    def _clear(self) -> None:
        self._meters, self._replayed, self._settings = {}, {}, []

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            warn(what)

    def _give_up(self, error: Exception) -> None:
        self._stop()
        warn(f"watching stopped, training goes on unwatched ({type(error).__name__}: {error})")


class SelfMeasuring(Protocol):
    """An optimizer that takes the statistics in its own pass: set `meters` to a dict before the step."""

    meters: dict[Tensor, Meter] | None


def _self_measuring(optimizer: Any) -> SelfMeasuring | None:
    return optimizer if getattr(type(optimizer), "measures_itself", False) is True else None


def _steps_taken(optimizer: Optimizer) -> int:
    """Steps that the optimizer has behind it, read off its state; 0 where it counts none."""
    counts = [
        state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state
    ]
    return int(max((float(count) for count in counts), default=0))


def _settings(optimizer: Optimizer) -> list[GroupSetting]:
    return [
        GroupSetting(number, _number(group.get("lr")), _number(group.get("weight_decay", 0.0)))
        for number, group in enumerate(optimizer.param_groups)
    ]


def _number(value: Any) -> float:
    """A setting as a float; NaN where an optimizer has none or finds its own."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
