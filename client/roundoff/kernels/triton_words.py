"""Storage words on the device: Triton functions that round, split and join on the bit pattern.

A 16-bit word is an int16 here whatever its format, and every rounding to one is integer arithmetic, which no
compiler may take for a detour and remove; Triton's interpreter, for one, does not round its own bfloat16 casts
to nearest even. `form` is "bfloat16", "float16" or "float32", whose words are the float32 values themselves;
`stored` says what is kept: "plain" words, a "pair" of them, a float32 "master" beside them, or the "exact" two
halves of one. The arithmetic is that of `roundoff.numerics`, element by element.
"""

from __future__ import annotations

import triton
import triton.language as tl

_SIZE: tl.constexpr = tl.constexpr(0x7FFFFFFF)
"""Every bit of a float32 but its sign."""
_INFINITY: tl.constexpr = tl.constexpr(0x7F800000)
_HALF: tl.constexpr = tl.constexpr(0x3F000000)
"""The bits of 0.5, whose float32 spacing is float16's smallest number, 2⁻²⁴."""
_F16_NORMAL: tl.constexpr = tl.constexpr(113 << 23)
"""The float32 bits of 2⁻¹⁴, float16's smallest normal number."""
_F16_LARGEST: tl.constexpr = tl.constexpr(0x477FE000)
"""The float32 bits of 65504."""
_F16_BIAS: tl.constexpr = tl.constexpr((127 - 15) << 10)
_F16_INFINITY: tl.constexpr = tl.constexpr(0x7C00)
_BF16_NAN: tl.constexpr = tl.constexpr(0x7FC0)
_F16_NAN: tl.constexpr = tl.constexpr(0x7E00)
_INDEX_WEYL: tl.constexpr = tl.constexpr(0x9E3779B9)
_HIGH_WEYL: tl.constexpr = tl.constexpr(0x85EBCA6B)
_MIX1: tl.constexpr = tl.constexpr(0x7FEB352D)
_MIX2: tl.constexpr = tl.constexpr(0x846CA68B)


@triton.jit
def bits_of(x: tl.tensor) -> tl.tensor:
    """The bit pattern of float32, int32."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def is_finite(x: tl.tensor) -> tl.tensor:
    """Where float32 is neither infinite nor NaN."""
    return (bits_of(x) & _INFINITY) != _INFINITY


@triton.jit
def widen(words: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """The float32 value of storage words, exact."""
    if form == "bfloat16":
        return (words.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif form == "float16":
        return words.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return words


@triton.jit
def narrow(x: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """float32 rounded once to storage words, to nearest, ties to even; NaN becomes the quiet NaN."""
    if form == "float32":
        return x
    elif form == "bfloat16":
        bits = bits_of(x)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where((bits & _SIZE) > _INFINITY, _BF16_NAN, rounded).to(tl.int16)
    else:
        bits = bits_of(x)
        size = bits & _SIZE
        # Beside 0.5 the last bit of a float32 is 2⁻²⁴: the addition rounds, and the low bits are the word.
        small = bits_of(size.to(tl.float32, bitcast=True) + 0.5) - _HALF
        large = ((size + 0xFFF + ((size >> 13) & 1)) >> 13) - _F16_BIAS
        word = tl.where(size < _F16_NORMAL, small, tl.minimum(large, _F16_INFINITY))
        return tl.where(size > _INFINITY, _F16_NAN, ((bits >> 16) & 0x8000) | word).to(tl.int16)


@triton.jit
def narrow_by_chance(x: tl.tensor, random: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """`numerics.round_stochastic` with random words in [0, 65535], int32."""
    bits = bits_of(x)
    size = bits & _SIZE
    if form == "bfloat16":
        return tl.where(size < _INFINITY, ((bits + random) >> 16).to(tl.int16), narrow(x, form))
    else:
        # Of 13 dropped bits, three of the random ones are too many: d·2³ + r ≥ 2¹⁶ is d + floor(r / 2³) ≥ 2¹³.
        large = ((size + (random >> 3)) >> 13) - _F16_BIAS
        is_small = size < _F16_NORMAL
        # 65536ths of 2⁻²⁴, rounded down; scaling by a power of two is exact.
        parts = (tl.where(is_small, size, 0).to(tl.float32, bitcast=True) * 1099511627776.0).to(tl.int32)
        word = tl.where(is_small, (parts + random) >> 16, large)
        chosen = (((bits >> 16) & 0x8000) | word).to(tl.int16)
        return tl.where(size <= _F16_LARGEST, chosen, narrow(x, form))


@triton.jit
def split(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """`numerics.split_master`: float32 as (bfloat16 word, 16-bit remainder), rounded ties away."""
    bits = bits_of(x)
    nan = (bits & _SIZE) > _INFINITY
    word = tl.where(nan, ((bits >> 16) & 0x8000) | _BF16_NAN, (bits + 0x8000) >> 16)
    return word.to(tl.int16), tl.where(nan, 0, bits).to(tl.int16)


@triton.jit
def join(word: tl.tensor, remainder: tl.tensor) -> tl.tensor:
    """`numerics.join_master`: the float32 that `split` split; the word alone where the two would be NaN."""
    high = word.to(tl.int32) << 16
    joined = high + remainder.to(tl.int32)
    return tl.where((joined & _SIZE) > _INFINITY, high, joined).to(tl.float32, bitcast=True)


@triton.jit
def random_words(key_low: tl.tensor, key_high: tl.tensor, index: tl.tensor) -> tl.tensor:
    """`numerics.random_words`: 16 random bits per element as int32, from a key in two words and int64 indices."""
    x = index.to(tl.uint32) * _INDEX_WEYL + (index >> 32).to(tl.uint32) * _HIGH_WEYL + key_low.to(tl.uint32)
    x = (x ^ (x >> 16)) * _MIX1
    x = (x ^ (x >> 15)) ^ key_high.to(tl.uint32)
    return ((x * _MIX2) >> 16).to(tl.int32)


@triton.jit
def stored_value(word: tl.tensor, second: tl.tensor, form: tl.constexpr, stored: tl.constexpr) -> tl.tensor:
    """Everything stored of a weight or a second moment as float32; `second` is not read where there is none."""
    if stored == "master":
        return second
    elif stored == "exact":
        return join(word, second)
    elif stored == "pair":
        return widen(word, form) + widen(second, form)
    else:
        return widen(word, form)


@triton.jit
def rest_of(word: tl.tensor, total: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """The second word: what rounding a total to the first left over; 0 where the first is not finite."""
    wide = widen(word, form)
    return narrow(tl.where(is_finite(wide), total - wide, 0.0), form)


@triton.jit
def add_to_pair(
    hi: tl.tensor, lo: tl.tensor, u: tl.tensor, form: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """`numerics.add_to_pair` on words."""
    total = widen(hi, form) + (widen(lo, form) + u)
    word = narrow(total, form)
    return word, rest_of(word, total, form)


@triton.jit
def add_compensated(
    w: tl.tensor, c: tl.tensor, u: tl.tensor, form: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """`numerics.add_compensated` on words."""
    y = u + widen(c, form)
    old = widen(w, form)
    word = narrow(old + y, form)
    rest = y - (widen(word, form) - old)
    return word, narrow(tl.where(is_finite(rest), rest, 0.0), form)
