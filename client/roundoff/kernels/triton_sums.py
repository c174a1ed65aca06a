"""The statistics of numerics §4 on the device: one program reduces its block to one row of `metrics.ROW`.

The definitions are those of `watch.statistics.Meter` and `watch.stored`; the sums are formed in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from roundoff.metrics import HEADROOM_BINS, HEADROOM_HIGH, HEADROOM_LOW, ROW

from .triton_words import add_to_pair, bits_of, is_finite, join, narrow, stored_value, widen

COLUMNS: tl.constexpr = tl.constexpr(len(ROW))
BINS: tl.constexpr = tl.constexpr(HEADROOM_BINS)
_LOW: tl.constexpr = tl.constexpr(HEADROOM_LOW)
_HIGH: tl.constexpr = tl.constexpr(HEADROOM_HIGH)
_SIZE: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_ROOT2: tl.constexpr = tl.constexpr(2.0**0.5)

_NUMEL: tl.constexpr = tl.constexpr(ROW.index("numel"))
_ATTEMPTED: tl.constexpr = tl.constexpr(ROW.index("attempted"))
_LOST: tl.constexpr = tl.constexpr(ROW.index("lost"))
_INVISIBLE: tl.constexpr = tl.constexpr(ROW.index("invisible"))
_UNCHANGED: tl.constexpr = tl.constexpr(ROW.index("unchanged"))
_DECAY_ATTEMPTED: tl.constexpr = tl.constexpr(ROW.index("decay_attempted"))
_DECAY_LOST: tl.constexpr = tl.constexpr(ROW.index("decay_lost"))
_V_ATTEMPTED: tl.constexpr = tl.constexpr(ROW.index("v_attempted"))
_V_STUCK: tl.constexpr = tl.constexpr(ROW.index("v_stuck"))
_V_STUCK_HIGH: tl.constexpr = tl.constexpr(ROW.index("v_stuck_high"))
_UNDERFLOWED: tl.constexpr = tl.constexpr(ROW.index("underflowed"))
_V_UNDERFLOWED: tl.constexpr = tl.constexpr(ROW.index("v_underflowed"))
_NONFINITE: tl.constexpr = tl.constexpr(ROW.index("nonfinite"))
_ZERO_GRAD: tl.constexpr = tl.constexpr(ROW.index("zero_grad"))
_SUM_UU: tl.constexpr = tl.constexpr(ROW.index("sum_uu"))
_SUM_UA: tl.constexpr = tl.constexpr(ROW.index("sum_ua"))
_SUM_AA: tl.constexpr = tl.constexpr(ROW.index("sum_aa"))
_SUM_US: tl.constexpr = tl.constexpr(ROW.index("sum_us"))
_SUM_SS: tl.constexpr = tl.constexpr(ROW.index("sum_ss"))
_SUM_WW: tl.constexpr = tl.constexpr(ROW.index("sum_ww"))
_EVIDENCE: tl.constexpr = tl.constexpr(ROW.index("expected_roundings"))


@triton.jit
def count(row: tl.tensor, column: tl.constexpr, where: tl.tensor) -> None:
    """Write how many elements of the block fulfil a condition."""
    tl.store(row + column, tl.sum(where.to(tl.int32), axis=0).to(tl.float64))


@triton.jit
def add_up(row: tl.tensor, column: tl.constexpr, values: tl.tensor) -> None:
    """Write the sum of the block's float64 values."""
    tl.store(row + column, tl.sum(values, axis=0))


@triton.jit
def measure_weight(
    row: tl.tensor,
    w: tl.tensor,
    second: tl.tensor,
    w_after: tl.tensor,
    second_after: tl.tensor,
    u: tl.tensor,
    inside: tl.tensor,
    form: tl.constexpr,
    stored: tl.constexpr,
) -> tl.tensor:
    """Write what `Meter.update` measures but for the decay; returns where elements are finite and inside."""
    before = widen(w, form)
    seen = widen(w_after, form) - before
    if stored == "pair":
        # In this order: hi + lo itself is not exact in float32.
        applied = seen + (widen(second_after, form) - widen(second, form))
        value = before.to(tl.float64) + widen(second, form).to(tl.float64)
    elif stored == "plain":
        applied = seen
        value = before.to(tl.float64)
    else:
        old = stored_value(w, second, form, stored)
        applied = stored_value(w_after, second_after, form, stored) - old
        value = old.to(tl.float64)
    finite = inside & is_finite(u) & is_finite(seen) & is_finite(applied)
    tried = finite & (u != 0)
    count(row, _NUMEL, inside)
    count(row, _NONFINITE, inside & (finite == 0))
    count(row, _ATTEMPTED, tried)
    count(row, _LOST, tried & (applied == 0))
    count(row, _INVISIBLE, tried & (seen == 0))
    count(row, _UNCHANGED, finite & (seen == 0))
    u64 = tl.where(finite, u, 0.0).to(tl.float64)
    a64 = tl.where(finite, applied, 0.0).to(tl.float64)
    s64 = tl.where(finite, seen, 0.0).to(tl.float64)
    value = tl.where(finite, value, 0.0)
    add_up(row, _SUM_UU, u64 * u64)
    add_up(row, _SUM_UA, u64 * a64)
    add_up(row, _SUM_AA, a64 * a64)
    add_up(row, _SUM_US, u64 * s64)
    add_up(row, _SUM_SS, s64 * s64)
    add_up(row, _SUM_WW, value * value)
    return finite


@triton.jit
def measure_headroom(
    row: tl.tensor,
    bins: tl.tensor,
    w: tl.tensor,
    second: tl.tensor,
    u: tl.tensor,
    finite: tl.tensor,
    form: tl.constexpr,
    stored: tl.constexpr,
) -> None:
    """Write the expected roundings, how many updates are below the format's range, and the headroom.

    `bins` is None where nobody asks for the histograms.
    """
    tried = finite & (u != 0)
    size = bits_of(u) & _SIZE
    if form == "bfloat16":
        count(row, _UNDERFLOWED, tried & (size <= (1 << 15)))  # 2⁻¹³⁴, half of the smallest word
    elif form == "float16":
        count(row, _UNDERFLOWED, tried & (size <= ((127 - 25) << 23)))  # 2⁻²⁵
    # Below float32's normal range the exponent cannot be read off; 2²⁴ times as much is within it.
    tiny = size < (1 << 23)
    lifted = bits_of(size.to(tl.float32, bitcast=True) * 16777216.0)
    exponent = tl.where(tiny, (lifted >> 23) - 24, size >> 23) - 127
    # r is a power of two, so floor(log2(|u| / r)) is the difference of two exponents, exactly.
    k = tl.minimum(tl.maximum(exponent - resolution(w, second, u, form, stored), _LOW), _HIGH)
    power = ((k + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    expected = tl.where(k < 0, power * _ROOT2, 1.0)
    add_up(row, _EVIDENCE, tl.where(tried, expected, 0.0))
    if bins is not None:
        u64 = tl.where(tried, u, 0.0).to(tl.float64)
        bins += tl.program_id(0).to(tl.int64) * (2 * BINS)
        for place in range(BINS):
            here = tried & (k == place + _LOW)
            count(bins + place, 0, here)
            add_up(bins + place, BINS, tl.where(here, u64 * u64, 0.0))


@triton.jit
def resolution(
    w: tl.tensor, second: tl.tensor, u: tl.tensor, form: tl.constexpr, stored: tl.constexpr
) -> tl.tensor:
    """log2 of the resolution of what is stored at w in the direction of u, as `watch.stored` has it."""
    if stored == "master":
        return gap_exponent(second, u, "float32")
    elif stored == "exact":
        return gap_exponent(join(w, second), u, "float32")
    elif stored == "pair":
        if form == "bfloat16":
            return gap_exponent(widen(w, form), u, form) - 8
        else:
            # It runs out of range before lo runs out of digits.
            return tl.maximum(gap_exponent(widen(w, form), u, form) - 11, -24)
    else:
        return gap_exponent(widen(w, form), u, form)


@triton.jit
def gap_exponent(w: tl.tensor, u: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """`watch.stored.gap_exponent`: log2 of gap(w, u) for values of form held in float32."""
    bits = bits_of(w)
    toward_zero = (bits ^ bits_of(u)) >> 31
    exponent = ((bits & _SIZE) + toward_zero) >> 23
    if form == "bfloat16":
        return tl.maximum(exponent, 1) - (127 + 7)
    elif form == "float16":
        return tl.maximum(exponent, 127 - 14) - (127 + 10)
    else:
        return tl.maximum(exponent, 1) - (127 + 23)


@triton.jit
def measure_decay(
    row: tl.tensor,
    w: tl.tensor,
    second: tl.tensor,
    decay: tl.tensor,
    finite: tl.tensor,
    form: tl.constexpr,
    stored: tl.constexpr,
) -> None:
    """Write how often the decay term is not zero, and how often, added alone, it would change nothing."""
    tried = finite & (decay != 0) & is_finite(decay)
    if stored == "pair":
        hi, lo = add_to_pair(w, second, decay, form)
        kept = (widen(hi, form) == widen(w, form)) & (widen(lo, form) == widen(second, form))
    elif stored == "plain":
        before = widen(w, form)
        kept = widen(narrow(before + decay, form), form) == before
    else:
        value = stored_value(w, second, form, stored)
        kept = value + decay == value
    count(row, _DECAY_ATTEMPTED, tried)
    count(row, _DECAY_LOST, tried & kept)


@triton.jit
def words_differ(old: tl.tensor, new: tl.tensor) -> tl.tensor:
    """Where stored words are not the same bits."""
    if old.dtype == tl.float32:
        return bits_of(old) != bits_of(new)
    else:
        return old != new


@triton.jit
def measure_moment(
    row: tl.tensor,
    v: tl.tensor,
    second: tl.tensor,
    v_after: tl.tensor,
    second_after: tl.tensor,
    g: tl.tensor,
    rest2: tl.tensor,
    square_limit: tl.tensor,
    counted: tl.tensor,
    state: tl.constexpr,
    stored: tl.constexpr,
) -> None:
    """Write what `Meter.moment` measures, of the elements that `measure_weight` counted."""
    # Whether stored words have changed does not depend on what they stand for.
    moved = words_differ(v, v_after)
    if stored == "pair" or stored == "exact":
        moved = moved | words_differ(second, second_after)
    if stored == "pair":
        # hi + lo is exact in float64.
        wide, other = widen(v, state), widen(second, state)
        kept = wide.to(tl.float64) + other.to(tl.float64)
        finite = counted & is_finite(g) & is_finite(wide) & is_finite(other)
    else:
        value = stored_value(v, second, state, stored)
        kept = value.to(tl.float64)
        finite = counted & is_finite(g) & is_finite(value)
    square = g.to(tl.float64) * g.to(tl.float64)
    away = square - kept
    tried = finite & (away != 0) & (rest2 > 0)
    stuck = tried & (moved == 0)
    count(row, _V_ATTEMPTED, tried)
    count(row, _V_STUCK, stuck)
    count(row, _V_STUCK_HIGH, stuck & (away < 0))
    count(row, _V_UNDERFLOWED, finite & (square != 0) & (square <= square_limit))
    count(row, _ZERO_GRAD, counted & (g == 0))
