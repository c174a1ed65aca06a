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
    """A parameter before and after a step: words, and the state of it. `after` may be a replay's or the real one."""

    word: Tensor
    state: Mapping[Any, Any]
    word_after: Tensor
    state_after: Mapping[Any, Any]


def measure_replay(
    meter: Meter, optimizer: Optimizer, group: Mapping[str, Any], index: int, real: Replayed, u: Tensor
) -> None:
    """Add one replayed parameter to a meter, with its decay and second moment where it has them."""
    param = group["params"][index]
    state = optimizer.state.get(param, {})
    outcome = Outcome(param, state, real.after.param, real.after.state)
    moment = moment_of(group, state, real.after.state) if real.squares else None
    grad = None if moment is None else unscaled(optimizer, param.grad)
    measure_outcome(meter, outcome, u, real.second, decay_rate(optimizer, group), moment, grad)


def measure_outcome(
    meter: Meter,
    outcome: Outcome,
    u: Tensor,
    second: Second | None,
    decay: float | None,
    moment: Moment | None = None,
    grad: Tensor | None = None,
) -> None:
    """Add all figures of one step: `decay` is the share of the weight that is taken from it, `moment` goes with `grad`.

    In one pass in C where that knows what is kept, else in chunks of tensor operations: the same counts.
    """
    if not _measured_in_c(meter, outcome, u, second, decay, moment, grad):
        _measure_in_chunks(meter, outcome, u, second, decay, moment, grad)


def _measured_in_c(
    meter: Meter,
    outcome: Outcome,
    u: Tensor,
    second: Second | None,
    decay: float | None,
    moment: Moment | None,
    grad: Tensor | None,
) -> bool:
    kind = None if second is None else second.kind
    if outcome.word.device.type != "cpu" or kind not in IN_C:
        return False
    from roundoff.kernels.cpu.measuring import measure_words  # imports this package

    before, after = {"param": outcome.word}, {"param": outcome.word_after}
    if second is not None:
        old, new = (tensor_at(state, second.path) for state in (outcome.state, outcome.state_after))
        if new is not None and (kept := _before(outcome.word, old, new, second)) is not None:
            before[str(IN_C[kind])], after[str(IN_C[kind])] = kept, new
        elif new is not None:
            return False
    beta2 = 0.0
    if moment is not None:
        before[SECOND_MOMENT], after[SECOND_MOMENT], beta2 = moment
    return measure_words(
        meter,
        {name: words.detach().reshape(-1) for name, words in before.items()},
        {name: words.detach().reshape(-1) for name, words in after.items()},
        u.reshape(-1),
        decay=None if decay is None else -decay,
        grad=None if grad is None else grad.detach().reshape(-1),
        beta2=beta2,
    )


def _before(word: Tensor, old: Tensor | None, new: Tensor, second: Second) -> Tensor | None:
    """A second word before the step; at the first step of all a compensation is 0, and a master is not there yet."""
    if old is not None:
        return old
    return torch.zeros_like(new) if second.kind == "plus" and new.shape == word.shape else None


def _measure_in_chunks(
    meter: Meter,
    outcome: Outcome,
    u: Tensor,
    second: Second | None,
    decay: float | None,
    moment: Moment | None,
    grad: Tensor | None,
) -> None:
    words = [x.detach().reshape(-1) for x in (outcome.word, outcome.word_after, u)]
    old = new = None
    if second is not None:
        old, new = (tensor_at(state, second.path) for state in (outcome.state, outcome.state_after))
    for start in range(0, words[0].numel(), CHUNK):
        part = slice(start, start + CHUNK)
        hi, hi_after, update = (x[part] for x in words)
        stored = plain(hi.dtype)
        if second is not None and new is not None:
            before = None if old is None else old.reshape(-1)[part]
            stored = second.stored(hi, hi_after, before, new.reshape(-1)[part])
        term = None if decay is None else stored.value(hi).to(torch.float32) * -decay
        counted = meter.update(hi, hi_after, update, stored, term)
        if moment is not None and grad is not None:
            v, v_after, g = (x.reshape(-1)[part] for x in (*moment[:2], grad))
            meter.moment(v, v_after, g, moment[2], counted=counted)
