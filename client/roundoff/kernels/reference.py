"""The readable backend: AdamW in float32 registers, every stored tensor rounded once (numerics §2–3).

It works on chunks, so that the float32 temporaries stay in cache and no float32 copy of a tensor exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roundoff.numerics import (
    LOWER_WORDS,
    add_compensated,
    add_to_expansion,
    add_to_pair,
    join_master,
    join_words,
    narrow,
    random_words,
    round_stochastic,
    split_master,
)
from roundoff.watch.stored import stored_between

from .step import Noise, Step, Update

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy
    from roundoff.watch.statistics import Meter

CHUNK = 1 << 16
"""Elements updated at a time."""

Chunk = dict[str, Tensor]
"""Views of the tensors of one parameter on one stretch of elements: `param`, `grad` and the state's names."""


def step_fp32(updates: Sequence[Update]) -> None:
    """AdamW steps with binary32 arithmetic; see `kernels.step.Kernel`."""
    for update in updates:
        for start, chunk in chunks(update):
            before = snapshot(chunk, update.meter)
            m, v, u, decay = intend(chunk, update.step)
            words = noise_words(update.noise, start, chunk)
            store_moments(chunk, m, v, update.step)
            store_weight(chunk, u, update.strategy, update.step, words)
            if update.meter is not None and before is not None:
                observe(update.meter, before, chunk, u, decay, update.step)


def chunks(update: Update) -> Iterator[tuple[int, Chunk]]:
    """Stretches of at most `CHUNK` elements and where they start; the whole where it cannot be flattened."""
    tensors = {"param": update.param, "grad": update.grad}
    for tensor in update.strategy.tensors(amsgrad=update.step.amsgrad):
        tensors[tensor.name] = update.state[tensor.name]
    if not all(tensor.is_contiguous() for name, tensor in tensors.items() if name != "grad"):
        yield 0, tensors
        return
    flat = {name: tensor.reshape(-1) for name, tensor in tensors.items()}
    for start in range(0, update.param.numel(), CHUNK):
        yield start, {name: tensor[start : start + CHUNK] for name, tensor in flat.items()}


def intend(chunk: Chunk, step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """m', v', the intended update u and its decay part (None without decay), float32, nothing stored yet.

    u = −lr·( (m'/(1−β1ᵗ)) / (√(v'/(1−β2ᵗ)) + eps) + wd·w ) from everything that is stored of m, v and w: the
    formula of `torch.optim.AdamW`, with the decay inside u (numerics §3). The corrections are folded into the
    step size and the root's scale, so that an element takes one division and one square root.
    """
    g = gradient(chunk, step)
    m = chunk["exp_avg"].to(torch.float32) * step.beta1 + g * (1.0 - step.beta1)
    v = second_moment(chunk) * step.beta2 + (g * g) * (1.0 - step.beta2)
    under = torch.maximum(second_moment(chunk, "max_"), v) if step.amsgrad else v
    denominator = (_root(under) * _single(step.root_scale)).add_(_single(step.eps))
    u = (m * _single(step.step_size)).div_(denominator)
    if not step.weight_decay:
        return m, v, u, None
    decay = weight(chunk) * _single(step.decay)
    return m, v, u.add_(decay), decay


def _root(x: Tensor) -> Tensor:
    """√x of float32, correctly rounded, so that shards, chunks and other backends agree.

    On x86 PyTorch takes float32 roots from a library that is one unit off for every sixth number, but not for
    the last few of a tensor. A float64 root that is less than one unit off rounds to the right float32.
    """
    return x.to(torch.float64).sqrt_().to(torch.float32)


def gradient(chunk: Chunk, step: Step) -> Tensor:
    """The gradient as float32, unscaled, negated where the objective is to grow."""
    g = chunk["grad"].to(torch.float32)
    if step.gradient_scale is not None:
        g = g * _single(step.gradient_scale)
    return -g if step.maximize else g


def weight(chunk: Chunk) -> Tensor:
    """Everything stored of the weight, as float32."""
    if "master" in chunk:
        return chunk["master"]
    if "remainder" in chunk:
        return join_master(chunk["param"], chunk["remainder"])
    return join_words([chunk[name] for name in ("param", *LOWER_WORDS) if name in chunk])


def second_moment(chunk: Chunk, prefix: str = "") -> Tensor:
    """Everything stored of the second moment, or with "max_" of its maximum, as float32."""
    hi, name = chunk[f"{prefix}exp_avg_sq"], f"{prefix}exp_avg_sq_"
    if f"{name}remainder" in chunk:
        return join_master(hi, chunk[f"{name}remainder"])
    wide = hi.to(torch.float32)
    return wide + chunk[f"{name}lo"].to(torch.float32) if f"{name}lo" in chunk else wide


def store_moments(chunk: Chunk, m: Tensor, v: Tensor, step: Step) -> None:
    """Round the moments to storage, once; v to two words where the strategy keeps them."""
    if step.amsgrad:
        _store_second(chunk, torch.maximum(second_moment(chunk, "max_"), v), step, "max_")
    _put(chunk["exp_avg"], m, step)
    _store_second(chunk, v, step)


def _store_second(chunk: Chunk, v: Tensor, step: Step, prefix: str = "") -> None:
    words, name = chunk[f"{prefix}exp_avg_sq"], f"{prefix}exp_avg_sq_"
    if f"{name}remainder" in chunk:
        hi, rest = split_master(v)
        _put(words, hi, step)
        _put(chunk[f"{name}remainder"], rest, step)
        return
    hi = v.to(words.dtype)
    _put(words, hi, step)
    if f"{name}lo" in chunk:
        _put(chunk[f"{name}lo"], torch.where(hi.isfinite(), v - hi.to(torch.float32), 0.0), step)


def store_weight(chunk: Chunk, u: Tensor, strategy: Strategy, step: Step, words: Tensor | None) -> None:
    """Add u to everything that is stored of the weight. `words` are the random bits of stochastic rounding."""
    w = chunk["param"]
    if "master" in chunk:
        master = chunk["master"] + u
        _put(chunk["master"], master, step)
        _put(w, master, step)
    elif "remainder" in chunk:
        hi, rest = split_master(weight(chunk) + u)
        _put(w, hi, step)
        _put(chunk["remainder"], rest, step)
    elif "lo2" in chunk:
        new = add_to_expansion((w, chunk["lo"], chunk["lo2"]), u)
        for name, word in zip(("param", *LOWER_WORDS), new, strict=True):
            _put(chunk[name], word, step)
    elif "lo" in chunk:
        add = add_compensated if strategy.name == "kahan" else add_to_pair
        hi, lo = add(w, chunk["lo"], u)
        _put(w, hi, step)
        _put(chunk["lo"], lo, step)
    elif words is not None:
        _put(w, round_stochastic(w.to(torch.float32) + u, w.dtype, words), step)
    else:
        _put(w, w.to(torch.float32) + u, step)


def noise_words(noise: Noise | None, start: int, chunk: Chunk) -> Tensor | None:
    """The random words of one chunk, in its shape; None where nothing is rounded stochastically."""
    if noise is None:
        return None
    w = chunk["param"]
    if noise.index is not None:
        index = noise.index[start : start + w.numel()]
    else:
        index = torch.arange(start, start + w.numel(), device=w.device) + noise.first
    return random_words(noise.key, index).reshape(w.shape)


def _put(words: Tensor, value: Tensor, step: Step) -> None:
    """Store, rounding once; where a loss scaler found infinities, which the device knows, keep what is there."""
    if words.dtype.itemsize == 1:
        value = narrow(value, words.dtype)
    if step.found_inf is not None:
        value = torch.where(step.found_inf == 0, value.to(words.dtype), words)
    words.copy_(value)


def _single(scalar: float | Tensor) -> float | Tensor:
    """A scalar as float32 arithmetic takes it: PyTorch rounds numbers itself, and would promote to a tensor's."""
    return scalar.to(torch.float32) if isinstance(scalar, Tensor) else scalar


def snapshot(chunk: Chunk, meter: Meter | None) -> Chunk | None:
    """The words before the step, if they are to be measured and there is memory for them."""
    if meter is None or meter.error is not None:
        return None
    try:
        return {name: words.clone() for name, words in chunk.items()}
    except RuntimeError as error:
        meter.error = error
        return None


def observe(meter: Meter, before: Chunk, after: Chunk, u: Tensor, decay: Tensor | None, step: Step) -> None:
    """Measure what one chunk's step did. `before` holds the words as they were. Never raises into the step."""
    try:
        old = {name: words.reshape(-1) for name, words in before.items()}
        new = {name: words.reshape(-1) for name, words in after.items()}
        term = None if decay is None else decay.reshape(-1)
        counted = meter.update(old["param"], new["param"], u.reshape(-1), stored_between(old, new), term)
        g = gradient({"grad": old["grad"]}, step)
        v, v_lo = "exp_avg_sq", "exp_avg_sq_remainder" if "exp_avg_sq_remainder" in old else "exp_avg_sq_lo"
        meter.moment(old[v], new[v], g, step.beta2, old.get(v_lo), new.get(v_lo), counted=counted)
    except Exception as error:  # noqa: BLE001 (a half-finished step would be worse than an unmeasured one)
        meter.error = error
