"""`Watch`: hooks around an optimizer's step that measure some of them and leave nothing behind."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from roundoff.delivery.notices import logger
from roundoff.delivery.sample import GroupSetting, Sink
from roundoff.delivery.transfer import departed
from roundoff.metrics import Advice, Verdict
from roundoff.metrics.cures import BY_ROWS, VISIBLE_ONLY
from roundoff.metrics.forecast import LOST_LEVELS
from roundoff.telling import warn
from roundoff.wire import Layer

from .advisor import advise
from .cadence import Automatic, Every, cadence
from .canary import run_canary
from .closures import Arguments, closure_of, followed_by, searches
from .history import History
from .layers import Layers, Patterns
from .loading import notice_loads
from .nesting import is_nested
from .outlook import Outlook, Schedule, outlook, schedules_of
from .placement import replica_of_process
from .preflight_checks import Warned, lines_of, preflight_members
from .rows import BUDGET
from .shadow import Shadow
from .statistics import Meter
from .taking import sample_of, settings_of
from .words import sampled_words
from .wrappers import own_optimizer

NEVER = 2**63
"""A step that no run reaches."""

HEADROOM_EVERY = 5
"""Samples from one with histograms of headroom to the next, unless told otherwise."""


def watch(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    every: Every = "auto",
    layers: Patterns | None = None,
    headroom_every: int = HEADROOM_EVERY,
    first_step: int | None = None,
    replica: int | None = None,
    budget: int | None = BUDGET,
    sink: Sink | None = None,
) -> Watch:
    """Watch an optimizer: measure some of its steps, per parameter tensor.

    Args:
        model: gives the layers their names.
        optimizer: any `torch.optim.Optimizer` over the model's parameters. `CollageAdamW` measures in its own
            pass; any other is replayed on copies, one tensor at a time, just before its real step.
        every: optimizer steps from one sample to the next: a number; a table of numbers by the step from which they
            hold; or "auto": each of the first 32, then every tenth, and sparser as the run grows and its verdicts
            stand still, so that a run of any length makes a few thousand samples.
        layers: shell patterns for the parameters' full names (`"blocks.*.mlp.*"`, or several); one that begins with
            `!` leaves out. None: all.
        headroom_every: samples from one with histograms of headroom to the next; a forecast needs them.
        first_step: number of the next optimizer step, counted from 0; None reads it off the optimizer.
        replica: this process's number among those that hold the same weights; only number 0 measures them. None: the
            rank in the job. Shards (DTensor) say themselves who holds what. With model parallelism by plain tensors,
            where every rank holds others, pass 0 on all of them.
        budget: bytes of weights that a sampled step looks at, at most, and a sixteenth of it of one tensor; None: all
            of them. Of tensors that are larger than their share every n-th row is measured, always the same ones, and
            the figures are estimates for the whole (`sampled-` before the layer's strategy says so). Where an
            optimizer's rows depend on one another, and with `CollageAdamW`, which measures as it goes, all rows are
            measured whatever it says.
        sink: where samples go. Without one a verdict table is printed when the program ends.

    What a look at dtypes, settings and weights tells before the first step (`roundoff.watch.preflight`) is said in
    the log `roundoff`, or on standard error, and kept in `findings`. Training is bit-identical with and without a
    watch, and nothing in here raises during a step. Raises ValueError if `every`, `headroom_every` or `budget` is
    below 1, a parameter of the optimizer has no name in the model, or `layers` leaves none; RuntimeError if this
    machine does not give the figures that a known step must have.
    """
    watching = Watch(
        model,
        optimizer,
        every,
        layers=layers,
        headroom_every=headroom_every,
        first_step=first_step,
        replica=replica,
        budget=budget,
        sink=sink,
    )
    if sink is None:
        watching.print_at_exit()
    return watching


class Watch:
    """A running watch. Use `watch` to make one; `detach`, or leave the `with` block, to end it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: Every,
        *,
        layers: Patterns | None,
        headroom_every: int,
        first_step: int | None,
        replica: int | None,
        budget: int | None,
        sink: Sink | None,
    ) -> None:
        if headroom_every < 1:
            raise ValueError(f"headroom_every must be 1 or larger, got {headroom_every}")
        if budget is not None and budget < 1:
            raise ValueError(f"budget must be 1 byte or more, or None for all, got {budget}")
        self._cadence = cadence(every)
        self._headroom_every = headroom_every
        optimizer = own_optimizer(optimizer)
        self._self_measuring = _self_measuring(optimizer)
        self._sink = sink
        self._layers = Layers(model, optimizer, layers, replica_of_process() if replica is None else replica)
        run_canary({(one.part.device, one.part.dtype) for one in self._layers.watched.values()})
        if isinstance(self._cadence, Automatic):
            self._cadence.steady = self._layers.sharded
        self.findings: list[Warned] = self._look_ahead(optimizer)
        """What could be said before the first step."""
        self.step = _steps_taken(optimizer) if first_step is None else first_step
        """Number of the next optimizer step, counted from 0."""
        self._due = self._cadence.first(self.step) if self._layers.watched else NEVER
        self._taken = self._nested = 0
        self._inside = False
        self.history = History()
        self._meters: dict[Tensor, Meter] = {}
        self._settings: list[GroupSetting] = []
        self._said: set[str] = set()
        self._shadow: Shadow | None = None
        if self._self_measuring is None:
            self._shadow = Shadow(optimizer, self._layers.names, self._say, budget=budget)
        self._at_exit: Callable[[], None] | None = None
        self._declare(self.layers)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        if self._self_measuring is None:  # ours gives back every tensor as it was
            self._hooks += notice_loads(optimizer, self._layers.names, lambda found: self._say(found.text))

    @property
    def layers(self) -> list[Layer]:
        """The watched parameter tensors as they are declared to a server."""
        return self._layers.declared

    def verdict(self) -> Verdict:
        """The verdict so far, in words and with the numbers behind it."""
        return self.history.verdict()

    def forecast(
        self,
        schedule: Schedule | LRScheduler,
        steps: int | None = None,
        *,
        levels: Sequence[float] = LOST_LEVELS,
    ) -> Outlook:
        """When each layer and the model will have lost 10, 50 and 90 % of their updates, or half of the descent.

        `schedule` is a table of learning rates by optimizer step, for all groups, or the run's own scheduler and how
        many of its `steps` to look at; `levels` are other shares of lost updates to be told of. Made from the newest
        sample with histograms (numerics §6); waits for the device. Raises ValueError before the first sample, after
        `detach`, and for a scheduler that goes by a measured loss.
        """
        if self.history.newest is None:
            raise ValueError(
                "a forecast needs a sample: call it after the first watched step and before detach()"
            )
        groups = sorted({layer.group for layer in self.layers})
        schedules = schedules_of(schedule, groups, self.step, steps)
        return outlook(self.history.newest, self.layers, schedules, levels)

    def advise(self) -> Advice:
        """What every strategy would have lost of the same updates, and the cheapest that holds: `advisor.advise`."""
        return advise(self.history)

    def report(self) -> None:
        """Print the verdict table now."""
        from .report import print_report

        print_report(self.history)

    def print_at_exit(self) -> None:
        """Print the verdict table when the program ends, unless detached before or all is measured elsewhere."""
        if not self._layers.watched:
            return
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
        self._due = NEVER
        if self._self_measuring is not None:
            self._self_measuring.meters = None
        self._clear()
        self._layers.release()
        self._sink = self.history.newest = self._shadow = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        if self._inside and is_nested(optimizer):
            self._nested += 1
            return None
        self._inside, self._nested = True, 0
        if self.step < self._due:
            return None
        try:
            self._settings = settings_of(optimizer)
            self._meet(optimizer)
            if self._self_measuring is not None:
                self._ask(self._self_measuring)
            elif (
                self._shadow is not None and closure_of(args, kwargs) is not None and not searches(optimizer)
            ):
                words = {param: sampled_words(one.part) for param, one in self._layers.watched.items()}
                return followed_by(lambda: self._after_closure(optimizer, words), args, kwargs)
            elif self._shadow is not None:
                self._shadow.before(args, kwargs, headroom=self._bins_too)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)
        return None

    def _after_closure(self, optimizer: Optimizer, words: dict[Tensor, Tensor]) -> None:
        """The gradients are there; so must be the weights, as they were before the step. Must not raise."""
        try:
            parts = {param: one.part for param, one in self._layers.watched.items() if param in words}
            if any(not torch.equal(sampled_words(part), words[param]) for param, part in parts.items()):
                self._say(
                    f"{type(optimizer).__name__} moves weights before its closure: such steps are not measured"
                )
            elif self._shadow is not None:
                self._shadow.before((optimizer,), {}, headroom=self._bins_too)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        if self._nested:
            self._nested -= 1
            return
        self._inside = False
        step = self.step
        self.step = step + 1
        if step < self._due:
            return
        try:
            if self._self_measuring is not None:
                self._self_measuring.meters, self._self_measuring.headroom = None, True
            self._collect(step)
            changed = self._cadence.looks and self.history.has_changed()
            self._due = self._cadence.after(step, changed=changed)
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            self._give_up(error)
        finally:
            self._clear()

    @property
    def _bins_too(self) -> bool:
        """Whether the sample that is being taken has histograms."""
        return self._taken % self._headroom_every == 0

    def _meet(self, optimizer: Optimizer) -> None:
        try:
            new = [one.declared() for one in self._layers.newcomers(optimizer)]
        except ValueError as error:
            self._say(f"parameters that were added later are not measured: {error}")
            return
        if new:
            self._declare(new)

    def _declare(self, layers: list[Layer]) -> None:
        self.history.extend(layers)
        if self._sink is not None and layers:
            self._sink.declare(layers)

    def _ask(self, optimizer: SelfMeasuring) -> None:
        """Have the optimizer measure its step. Another watch may have asked already: then both read the same meters."""
        if optimizer.meters is None:
            optimizer.meters, optimizer.headroom = {}, self._bins_too
        else:
            optimizer.headroom |= self._bins_too
        self._meters = optimizer.meters

    def _collect(self, step: int) -> None:
        stepped = {param for param in self._layers.watched if param.grad is not None}
        if self._shadow is not None:
            stepped, self._meters = self._shadow.stepping, self._shadow.after()
            self._mark(self._shadow)
        sample = sample_of(
            step, self._layers, self._meters, self._settings, stepped=stepped, headroom=self._bins_too
        )
        if sample is None:
            return
        sample = departed(sample)
        self._taken += 1
        self.history.take(sample)
        if self._sink is not None:
            self._sink.sample(sample)

    def _mark(self, shadow: Shadow) -> None:
        """Declare layers again whose rows say less, or more, than they did."""
        marks = {
            param: f"{VISIBLE_ONLY if shadow.why(param) is not None else ''}"
            f"{BY_ROWS if shadow.share(param) < 1 else ''}"
            for param in self._layers.watched
        }
        changed = self._layers.mark(marks)
        self.history.declare_again(changed)
        if changed and self._sink is not None:
            self._sink.declare(changed)

    def _look_ahead(self, optimizer: Optimizer) -> list[Warned]:
        try:
            found = preflight_members(optimizer, [one.member for one in self._layers.watched.values()])
        except Exception as error:  # noqa: BLE001 (a watch never hurts the run it watches)
            warn(f"settings and weights were not looked at ({type(error).__name__}: {error})", stacklevel=5)
            return []
        for line in lines_of(found) if replica_of_process() == 0 else ():
            logger.info(line)
        return found

    def _clear(self) -> None:
        self._meters, self._settings = {}, []
        if self._shadow is not None:
            self._shadow.clear()

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
    headroom: bool


def _self_measuring(optimizer: Any) -> SelfMeasuring | None:
    return optimizer if getattr(type(optimizer), "measures_itself", False) is True else None


def _steps_taken(optimizer: Optimizer) -> int:
    """Steps that the optimizer has behind it, read off its state; 0 where it counts none."""
    counts = [
        state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state
    ]
    return int(max((float(count) for count in counts), default=0))
