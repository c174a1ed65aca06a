"""The Triton kernel: one AdamW step of one tensor in one pass, its statistics reduced on the way.

Every operation is the one of `reference.intend` and the functions after it, in the same order. Compiled with
`enable_fp_fusion=False` no multiplication and addition is contracted to a fused one, so the results are equal
bit for bit; division and square root are the correctly rounded ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_sums import COLUMNS, measure_decay, measure_headroom, measure_moment, measure_weight
from .triton_words import (
    add_compensated,
    add_to_pair,
    narrow,
    narrow_by_chance,
    random_words,
    rest_of,
    split,
    stored_value,
    widen,
)


@triton.jit
def load(words: tl.tensor, at: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Storage words: int16 for 16 bits, else as they are."""
    loaded = tl.load(words + at, mask=inside, other=0)
    if words.dtype.element_ty.primitive_bitwidth == 16:
        return loaded.to(tl.int16, bitcast=True)
    else:
        return loaded


@triton.jit
def store(words: tl.tensor, at: tl.tensor, values: tl.tensor, keep: tl.tensor) -> None:
    """Put storage words back."""
    tl.store(words + at, values.to(words.dtype.element_ty, bitcast=True), mask=keep)


@triton.jit
def load_both(
    words: tl.tensor, second: tl.tensor, at: tl.tensor, inside: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The words and the second ones; where there are none, the first again, which nobody then reads."""
    first = load(words, at, inside)
    if second is None:
        return first, first
    else:
        return first, load(second, at, inside)


@triton.jit
def store_both(
    words: tl.tensor, second: tl.tensor, at: tl.tensor, value: tl.tensor, rest: tl.tensor, keep: tl.tensor
) -> None:
    """Put the words back, and the second ones where there are any."""
    store(words, at, value, keep)
    if second is not None:
        store(second, at, rest, keep)


@triton.jit
def load_gradient(
    grad: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    scale: tl.tensor,
    scaled: tl.constexpr,
    maximize: tl.constexpr,
) -> tl.tensor:
    """The gradient as float32, unscaled, negated where the objective is to grow."""
    words = load(grad, at, inside)
    if grad.dtype.element_ty == tl.bfloat16:
        g = widen(words, "bfloat16")
    elif grad.dtype.element_ty == tl.float16:
        g = widen(words, "float16")
    else:
        g = words.to(tl.float32)
    if scaled:
        g = g * scale
    if maximize:
        g = g * -1.0  # Triton's minus is 0 − g, which has no −0
    return g


@triton.jit
def two_words(x: tl.tensor, form: tl.constexpr, stored: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """A second moment in its words; the second repeats the first where there is one only."""
    if stored == "exact":
        return split(x)
    elif stored == "pair":
        word = narrow(x, form)
        return word, rest_of(word, x, form)
    else:
        word = narrow(x, form)
        return word, word


@triton.jit
def add_update(
    w: tl.tensor,
    second: tl.tensor,
    u: tl.tensor,
    random: tl.tensor,
    form: tl.constexpr,
    stored: tl.constexpr,
    rule: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The words of a weight after u is added to everything that is stored of it."""
    if stored == "master":
        master = second + u
        return narrow(master, form), master
    elif stored == "exact":
        return split(stored_value(w, second, form, stored) + u)
    elif rule == "kahan":
        return add_compensated(w, second, u, form)
    elif stored == "pair":
        return add_to_pair(w, second, u, form)
    elif rule == "chance":
        word = narrow_by_chance(widen(w, form) + u, random, form)
        return word, word
    else:
        word = narrow(widen(w, form) + u, form)
        return word, word


@triton.jit
def raise_largest(
    words: tl.tensor,
    second: tl.tensor,
    v: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    keep: tl.tensor,
    state: tl.constexpr,
    moment: tl.constexpr,
) -> tl.tensor:
    """The largest second moment so far, v included: stored, and returned before it is rounded."""
    word, rest = load_both(words, second, at, inside)
    old = stored_value(word, rest, state, moment)
    largest = tl.where((old > v) | (old != old), old, v)  # NaN of either stays
    word, rest = two_words(largest, state, moment)
    store_both(words, second, at, word, rest, keep)
    return largest


# fmt: off
@triton.jit(do_not_specialize=["key_low", "key_high", "first"])
def step_kernel(
    param, other, grad, exp_avg, exp_avg_sq, exp_avg_sq_other, largest, largest_other,
    numel, step_size, root_scale, eps, decay, scale, scalars, beta1, rest1, beta2, rest2,
    found_inf, index, key_low, key_high, first, rows, bins, square_limit: tl.float64,
    form: tl.constexpr, state: tl.constexpr, stored: tl.constexpr, rule: tl.constexpr, moment: tl.constexpr,
    scaled: tl.constexpr, maximize: tl.constexpr, decays: tl.constexpr, block: tl.constexpr,
) -> None:
    """One block of elements, in place; a tensor that the step does without is None.

    `other` is the pair's lo, the exact remainder or the master. `scalars` holds step_size, root_scale, eps,
    decay and scale as float32 where the device alone knows one of them. `index` or `first` place the elements
    for the random bits. `rows` takes one row of `metrics.ROW` per program, `bins` the headroom's counts and
    energies if there are any, both float64; `square_limit` is the largest g² that is lost to underflow in v.
    """
    program = tl.program_id(0).to(tl.int64)
    at = program * block + tl.arange(0, block)
    inside = at < numel
    if scalars is not None:
        step_size, root_scale, eps = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
        decay, scale = tl.load(scalars + 3), tl.load(scalars + 4)
    keep = inside
    if found_inf is not None:
        keep = inside & (tl.broadcast_to(tl.load(found_inf), [block]) == 0)
    w, w_other = load_both(param, other, at, inside)
    v_word, v_other = load_both(exp_avg_sq, exp_avg_sq_other, at, inside)
    g = load_gradient(grad, at, inside, scale, scaled, maximize)
    m = widen(load(exp_avg, at, inside), state) * beta1 + g * rest1
    v = stored_value(v_word, v_other, state, moment) * beta2 + (g * g) * rest2
    under = v
    if largest is not None:
        under = raise_largest(largest, largest_other, v, at, inside, keep, state, moment)
    u = tl.div_rn(m * step_size, tl.sqrt_rn(under) * root_scale + eps)
    term = u
    if decays:
        term = stored_value(w, w_other, form, stored) * decay
        u = u + term
    random = w
    if rule == "chance":
        place = at + first
        if index is not None:
            place = tl.load(index + at, mask=inside, other=0)
        random = random_words(key_low, key_high, place)
    v_after, v_other_after = two_words(v, state, moment)
    w_after, w_other_after = add_update(w, w_other, u, random, form, stored, rule)
    store(exp_avg, at, narrow(m, state), keep)
    store_both(exp_avg_sq, exp_avg_sq_other, at, v_after, v_other_after, keep)
    store_both(param, other, at, w_after, w_other_after, keep)
    if rows is not None:
        if found_inf is not None:
            w_after, w_other_after = tl.where(keep, w_after, w), tl.where(keep, w_other_after, w_other)
            v_after, v_other_after = tl.where(keep, v_after, v_word), tl.where(keep, v_other_after, v_other)
        row = rows + program * COLUMNS
        counted = measure_weight(row, w, w_other, w_after, w_other_after, u, inside, form, stored)
        measure_headroom(row, bins, w, w_other, u, counted, form, stored)
        if decays:
            measure_decay(row, w, w_other, term, counted, form, stored)
        measure_moment(
            row, v_word, v_other, v_after, v_other_after, g, rest2, square_limit, counted, state, moment
        )
# fmt: on
