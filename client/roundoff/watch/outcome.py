"""The statistics of one parameter whose step is known: words and state before and after it, and the intended update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .clone import tensor_at
from .recognise import Second, plain
from .replaying import Replayed
from .statistics import CHUNK, Meter
from .terms import SECOND_MOMENT, Moment, decay_rate, moment_of, unscaled

IN_C = {None: None, "plus": "lo", "master": "master"}
"""Kinds of a second word that the C pass knows, and what it calls them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step of one parameter: words and state before and after it, which may be a replay's or the real one, and u.

    `second` is the word that is kept beside, `decay` the share of the weight that is taken from it, `moment` the second
    moment, which goes with `grad`; each None where there is none.
    """

    word: Tensor
    state: Mapping[Any, Any]
    word_after: Tensor
    state_after: Mapping[Any, Any]
    intended: Tensor
    second: Second | None = None
    decay: float | None = None
    moment: Moment | None = None
    grad: Tensor | None = None

    @property
    def seconds(self) -> tuple[Tensor | None, Tensor | None]:
        """The second word before and after; None where it was not or is not there."""
        if self.second is None:
            return None, None
        return tensor_at(self.state, self.second.path), tensor_at(self.state_after, self.second.path)


def measure_replay(
    meter: Meter, optimizer: Optimizer, group: Mapping[str, Any], index: int, real: Replayed, u: Tensor
) -> None:
    """Add one replayed parameter to a meter, with its decay and second moment where it has them."""
    param = group["params"][index]
    state, after = optimizer.state.get(param, {}), real.after
    moment = moment_of(group, state, after.state) if real.squares else None
    measure_outcome(
        meter,
        Outcome(
            param,
            state,
            after.param,
            after.state,
            u,
            real.second,
            decay_rate(optimizer, group),
            moment,
            None if moment is None else unscaled(optimizer, param.grad),
        ),
    )


def measure_outcome(meter: Meter, outcome: Outcome) -> None:
    """Add all figures of one step.

    In one pass in C where that knows what is kept, else in chunks of tensor operations: the same counts.
    """
    if not _measured_in_c(meter, outcome):
        _measure_in_chunks(meter, outcome)


def _measured_in_c(meter: Meter, outcome: Outcome) -> bool:
    second, (old, new) = outcome.second, outcome.seconds
    kind = None if second is None else second.kind
    if outcome.word.device.type != "cpu" or kind not in IN_C:
        return False
    from roundoff.kernels.cpu.measuring import measure_words  # imports this package

    before, after = {"param": outcome.word}, {"param": outcome.word_after}
    if new is not None:
        if old is None and (kind != "plus" or new.shape != outcome.word.shape):
            return False  # at the first step of all a compensation is 0, but no master is there yet
        name = str(IN_C[kind])
        before[name], after[name] = torch.zeros_like(new) if old is None else old, new
    beta2 = 0.0
    if outcome.moment is not None:
        before[SECOND_MOMENT], after[SECOND_MOMENT], beta2 = outcome.moment
    return measure_words(
        meter,
        {name: words.detach().reshape(-1) for name, words in before.items()},
        {name: words.detach().reshape(-1) for name, words in after.items()},
        outcome.intended.reshape(-1),
        decay=None if outcome.decay is None else -outcome.decay,
        grad=None if outcome.grad is None else outcome.grad.detach().reshape(-1),
        beta2=beta2,
    )


def _measure_in_chunks(meter: Meter, outcome: Outcome) -> None:
    words = [x.detach().reshape(-1) for x in (outcome.word, outcome.word_after, outcome.intended)]
    old, new = outcome.seconds
    for start in range(0, words[0].numel(), CHUNK):
        part = slice(start, start + CHUNK)
        hi, hi_after, update = (x[part] for x in words)
        stored = plain(hi.dtype)
        if outcome.second is not None and new is not None:
            before = None if old is None else old.reshape(-1)[part]
            stored = outcome.second.stored(hi, hi_after, before, new.reshape(-1)[part])
        term = None if outcome.decay is None else stored.value(hi).to(torch.float32) * -outcome.decay
        counted = meter.update(hi, hi_after, update, stored, term)
        if outcome.moment is not None and outcome.grad is not None:
            v, v_after, g = (x.reshape(-1)[part] for x in (*outcome.moment[:2], outcome.grad))
            meter.moment(v, v_after, g, outcome.moment[2], counted=counted)
