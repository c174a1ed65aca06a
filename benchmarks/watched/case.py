"""One optimizer trained with and without a watch, and what the two have in common."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.optim import Optimizer

import roundoff
from roundoff.delivery.sample import Sample
from roundoff.metrics import ROW
from roundoff.watch.clone import tensors_in
from roundoff.wire import Layer
from timing.results import Figure
from timing.turns import Runner, alternate, clock_for, quartiles, ratios

from .contenders import Contender
from .memory import peak_of

WIDTH, BATCH = 192, 16
WARM_UP = 20
"""Steps whose figures are not counted."""

CPU = torch.device("cpu")


class Case(BaseModel):
    """What was found out about one optimizer; figures are None where they cannot be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    measured: str
    identical: bool
    lost: float | None
    efficiency: float | None
    memory: float | None
    """Extra bytes of a sampled step, in sizes of the largest tensor."""
    ratio: Figure
    """Time of a sampled step over that of the optimizer's own."""
    said: str = ""
    """Why not all is measured."""


class Added:
    """A sink that adds up what is measured after the warm-up."""

    def __init__(self) -> None:
        self.total = dict.fromkeys(ROW, 0.0)

    def declare(self, layers: Sequence[Layer]) -> None:
        """Nothing is needed of them."""

    def sample(self, sample: Sample) -> None:
        """Add all layers of one step."""
        if sample.step < WARM_UP:
            return
        for row in sample.sums.tolist():
            for name, value in zip(ROW, row, strict=True):
                self.total[name] += value


class Training:
    """The toy problem: learn the mirrored input, in bfloat16, from one seed and one stream of batches."""

    def __init__(self, contender: Contender, *, every: int | None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        ).to(torch.bfloat16)
        self.optimizer: Optimizer = contender.make(self.model)
        self.sink, self.warnings = Added(), []
        self.watch = None
        if every is not None:
            self.watch = roundoff.watch(self.model, self.optimizer, every=every, sink=self.sink)
        self._batches = torch.Generator().manual_seed(0)
        self._by_closure = contender.name == "LBFGS"

    def gradients(self) -> Tensor:
        """New gradients from the next batch; the loss."""
        x = torch.randn(BATCH, WIDTH, generator=self._batches).to(torch.bfloat16)
        self.optimizer.zero_grad()
        loss: Tensor = (self.model(x) - x.flip(1)).to(torch.float32).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self) -> None:
        """The optimizer's step with the gradients that are there."""
        if self._by_closure:
            self.optimizer.step(self.gradients)
        else:
            self.optimizer.step()

    def run(self, steps: int) -> list[float]:
        """Train; the losses. Warnings of the watch are kept."""
        losses = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(steps):
                losses.append(float(self.gradients()))
                self.step()
        self.warnings += [str(one.message) for one in caught if "roundoff" in str(one.message)]
        return losses

    def left(self) -> list[Any]:
        """Weights, state and random numbers."""
        found: list[Any] = [torch.get_rng_state()]
        for param in self.model.parameters():
            found.append(param.detach().clone())
            found += [_words(tensor) for _, tensor in tensors_in(self.optimizer.state.get(param, {}))]
        return found


def examine(contender: Contender, steps: int, rounds: int) -> Case:
    """Train it twice, then take the memory and the times of single steps."""
    plain, watched = Training(contender, every=None), Training(contender, every=1)
    losses, left = plain.run(steps), plain.left()
    # The second starts where the first one did: constructors draw random numbers as well.
    watched = Training(contender, every=1)
    same = watched.run(steps) == losses and _alike(watched.left(), left)
    total = watched.sink.total
    told = total["attempted"] > 0
    return Case(
        label=contender.label,
        measured=_how(watched),
        identical=same,
        lost=total["lost"] / total["attempted"] if told else None,
        efficiency=total["sum_ua"] / total["sum_uu"] if told else None,
        memory=_memory(plain, watched),
        ratio=_ratio(plain, watched, rounds),
        said="; ".join(dict.fromkeys(watched.warnings)),
    )


def _how(training: Training) -> str:
    watch = training.watch
    assert watch is not None
    shadow = watch._shadow
    if shadow is None:
        return "by itself"
    modes = {
        shadow.mode(param) if shadow.why(param) is None else "visible" for param in watch._layers.watched
    }
    if modes == {"replay"}:
        return "replay" if shadow.float32_because is None else "replay (binary32)"
    return {"compare": "compared after the step", "visible": "visible change only"}.get(
        next(iter(modes)) if len(modes) == 1 else "", "mixed"
    )


def _memory(plain: Training, watched: Training) -> float | None:
    largest = max(param.numel() * param.element_size() for param in plain.model.parameters())
    peaks = []
    for training in (plain, watched):
        training.gradients()
        try:
            peaks.append(peak_of(training.step))
        except Exception:  # noqa: BLE001 (an operation that cannot be counted, as a compiled one)
            return None
    return max(0, peaks[1] - peaks[0]) / largest


def _ratio(plain: Training, watched: Training, rounds: int) -> Figure:
    runners = {
        str(number): Runner(training.step, training.gradients)
        for number, training in enumerate((plain, watched))
    }
    once = dict.fromkeys(runners, 1)
    alternate(runners, once, 2, clock_for(CPU))
    samples = alternate(runners, once, rounds, clock_for(CPU))
    return quartiles(ratios(samples["1"], samples["0"]))


def _words(tensor: Tensor) -> Tensor:
    """A plain copy, also of words that a library keeps in parts."""
    return tensor.dequantize() if hasattr(tensor, "codes") else tensor.detach().to(torch.float64)


def _alike(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
