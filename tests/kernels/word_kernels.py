"""Triton kernels that do nothing but call one of the device functions on words; import where Triton may be."""

from __future__ import annotations

import os

import triton
import triton.language as tl
from torch import Tensor

from roundoff.kernels.triton_words import (
    add_compensated,
    add_to_pair,
    join,
    narrow,
    narrow_by_chance,
    random_words,
    split,
    widen,
)

BLOCK = 1 << 14 if os.environ.get("TRITON_INTERPRET") else 1 << 10
"""An interpreter likes few programs, a GPU small ones."""


@triton.jit
def widen_kernel(words, out, numel, form: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, widen(tl.load(words + at, mask=at < numel, other=0), form), mask=at < numel)


@triton.jit
def narrow_kernel(x, out, numel, form: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, narrow(tl.load(x + at, mask=at < numel, other=0), form), mask=at < numel)


@triton.jit
def chance_kernel(x, random, out, numel, form: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < numel
    value, word = tl.load(x + at, mask=inside, other=0), tl.load(random + at, mask=inside, other=0)
    tl.store(out + at, narrow_by_chance(value, word, form), mask=inside)


@triton.jit
def split_kernel(x, word, remainder, joined, numel, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < numel
    high, low = split(tl.load(x + at, mask=inside, other=0))
    tl.store(word + at, high, mask=inside)
    tl.store(remainder + at, low, mask=inside)
    tl.store(joined + at, join(high, low), mask=inside)


@triton.jit
def join_kernel(word, remainder, out, numel, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < numel
    high, low = tl.load(word + at, mask=inside, other=0), tl.load(remainder + at, mask=inside, other=0)
    tl.store(out + at, join(high, low), mask=inside)


@triton.jit
def pair_kernel(w, lo, u, numel, form: tl.constexpr, kahan: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < numel
    high, low = tl.load(w + at, mask=inside, other=0), tl.load(lo + at, mask=inside, other=0)
    update = tl.load(u + at, mask=inside, other=0)
    if kahan:
        high, low = add_compensated(high, low, update, form)
    else:
        high, low = add_to_pair(high, low, update, form)
    tl.store(w + at, high, mask=inside)
    tl.store(lo + at, low, mask=inside)


@triton.jit(do_not_specialize=["key_low", "key_high"])
def random_kernel(index, out, numel, key_low, key_high, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < numel
    tl.store(
        out + at, random_words(key_low, key_high, tl.load(index + at, mask=inside, other=0)), mask=inside
    )


def launch(kernel, *tensors: Tensor, **constants):
    """Run one of them over the elements of its first tensor; integers that are no constants come last."""
    numbers = constants.pop("numbers", ())
    numel = tensors[0].numel()
    kernel[(-(-numel // BLOCK),)](*tensors, numel, *numbers, **constants, block=BLOCK)
