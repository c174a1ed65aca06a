"""What else an optimizer keeps for a weight beside its word, recognised by what the class does with it (numerics §5).

A second word may be what compensated summation carries on, a float32 master, or the rest of a master as a small
integer. Neither names nor sizes tell: a momentum may be as small as a compensation, and an average of the weights as
close to them as a master. What tells is whether the class reads word and second word as *one number*. So copies are
stepped from made-up words near 1 whose value is moved from one to the other: with a compensation the sum after the
step stays, and so does the word; under a master the word that was there before the step does not matter at all. No
momentum and no average does that, whatever the gradient is, and no statistics of the run are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from roundoff.numerics import format_of, gap, join_master

from .clone import Path, tensor_at, tensors_in
from .stored import Expansion, Master, Plain, Stored

Kind = Literal["plus", "minus", "master", "ulps", "bits"]
"""How word and second word make the weight: hi + lo, hi − lo, the float32 master itself, hi and a share of half its
spacing, or the upper and lower bits of a float32."""

Step = Callable[[Tensor, Mapping[Path, Tensor | None]], tuple[Tensor, Mapping[Any, Any]]]
"""Steps a copy from given words, with tensors put into its state: words and state after the step."""

MOVED = 16
"""Spacings by which words are moved: far more than rounding can, and still near."""

AGREE = 0.95
"""Share of the elements that have to do as a second word does."""

INTEGERS = (torch.int8, torch.int16)


@dataclass(frozen=True, slots=True)
class Second:
    """A recognised second word: where it lies in the state of a parameter, and what it means."""

    path: Path
    kind: Kind

    def value(self, word: Tensor, state: Mapping[Any, Any]) -> Tensor:
        """Everything stored, float64, in the shape of `word`; where the state has none yet, the word's value."""
        second = tensor_at(state, self.path)
        whole = word.detach().to(torch.float64)
        return whole if second is None else _value(whole, word.detach(), second.detach(), self.kind)

    def stored(self, hi: Tensor, hi_after: Tensor, before: Tensor | None, after: Tensor) -> Stored:
        """As the statistics read it: flat words and flat second words of one chunk, before and after a step."""
        if self.kind in ("plus", "minus"):
            before = torch.zeros_like(after) if before is None else before
            return Expansion((before,), (after,)) if self.kind == "plus" else Expansion((-before,), (-after,))
        old = hi.to(torch.float32) if before is None else _master(hi, before, self.kind)
        return Master(old, _master(hi_after, after, self.kind))

    def neutral(self, wide: Tensor, second: Tensor | None) -> Tensor | None:
        """What to put at its place where the word alone is to be the whole weight, in wide numbers."""
        if second is None or self.kind in ("ulps", "bits"):
            return None
        return wide.clone() if self.kind == "master" else torch.zeros_like(wide)

    def whole(self, word: Tensor, state: Mapping[Any, Any]) -> Tensor:
        """The weight after a step in wide numbers that began from `neutral`."""
        second = tensor_at(state, self.path)
        if second is None or self.kind in ("ulps", "bits") or second.shape != word.shape:
            return word
        if self.kind == "master":
            return second.to(word.dtype)
        return word + second if self.kind == "plus" else word - second

    def fits(self, word: Tensor, second: Tensor) -> Tensor:
        """Whether words may still be a weight's, 0-dim: a compensation is small, a master near its word."""
        if self.kind in ("ulps", "bits"):
            return torch.ones((), dtype=torch.bool, device=word.device)
        rest = second.to(torch.float64)
        if self.kind == "master":
            rest = rest - word.to(torch.float64)
        small = rest.abs() <= 4 * gap(word, rest)
        return (small | ~rest.isfinite()).to(torch.float32).mean() >= AGREE


def plain(dtype: torch.dtype) -> Stored:
    """Where there is no second word."""
    return Plain(format_of(dtype))


def candidates(param: Tensor, state: Mapping[Any, Any]) -> Iterator[tuple[Path, Tensor]]:
    """Tensors of a state that might be second words: by shape and width alone."""
    for path, tensor in tensors_in(state):
        if tensor.shape != param.shape or type(tensor) is not Tensor or tensor.device != param.device:
            continue
        if tensor.dtype in (param.dtype, torch.float32) or (
            tensor.dtype in INTEGERS and param.dtype in (torch.bfloat16, torch.float16)
        ):
            yield path, tensor


def has_integers(param: Tensor, state: Mapping[Any, Any]) -> bool:
    """Whether integers are among the candidates, which do not tell under a step that is next to nothing."""
    return any(tensor.dtype in INTEGERS for _, tensor in candidates(param, state))


def recognise(param: Tensor, state: Mapping[Any, Any], step: Step) -> Second | None:
    """The second word of a parameter that has been stepped at least once, None if it has none.

    `step` must do what the class does in the real dtypes. Takes three steps on copies and more for each candidate.
    """
    if param.dtype.itemsize > 4:
        return None
    for path, tensor in candidates(param, state):
        for kind in _kinds(param.dtype, tensor.dtype):
            if _is_second(param, path, kind, tensor.dtype, step):
                return Second(path, kind)
    return None


def _kinds(word: torch.dtype, second: torch.dtype) -> tuple[Kind, ...]:
    if second in INTEGERS:
        return ("ulps", "bits") if second == torch.int16 and word == torch.bfloat16 else ("ulps",)
    if second == word:
        return ("plus", "minus")
    return ("master",)


def _is_second(param: Tensor, path: Path, kind: Kind, dtype: torch.dtype, step: Step) -> bool:
    """Whether the class does with these two as with one number."""
    words, others, seconds, second_others = _made_up(param, kind, dtype)
    try:
        first, after = step(words, {path: seconds})
        second, after_other = step(others, {path: second_others})
    except Exception:  # noqa: BLE001 (a class that does not take such a value there does not keep a word there)
        return False
    kept, kept_other = tensor_at(after, path), tensor_at(after_other, path)
    if kept is None or kept_other is None or kept.shape != param.shape:
        return False
    spacing = gap(words, torch.zeros_like(words, dtype=torch.float64)).abs()
    wide, wide_other = first.to(torch.float64), second.to(torch.float64)
    whole, whole_other = (
        _value(wide, first, kept, kind),
        _value(wide_other, second, kept_other, kind),
    )
    # One spacing: the word may be rounded up for the one and down for the other. Not so beside an integer, which
    # has moved it by no more than that.
    sums = kind in ("plus", "minus")
    same_word = (wide - wide_other).abs() <= spacing * (1.0 if sums else 0.0)
    same_whole = (whole - whole_other).abs() <= spacing * (1.0 if sums else 2.0**-4)
    near = (whole - wide).abs() <= 2 * spacing
    finite = whole.isfinite() & whole_other.isfinite()
    agree = (same_word & same_whole & near) | ~finite
    return bool(finite.any()) and float(agree.to(torch.float32).mean()) >= AGREE


def _made_up(param: Tensor, kind: Kind, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two words and their second words that stand for the same weights, from ±1 to ±1.5, in the shape of `param`.

    Neighbours are moved in opposite directions, so that norms stay and a class that looks at them does not notice.
    """
    number = torch.arange(param.numel(), device=param.device).reshape(param.shape)
    sign = 1.0 - 2.0 * ((number // 2) % 2).to(torch.float64)
    up = 1.0 - 2.0 * (number % 2).to(torch.float64)
    ulp = 2.0 ** (1 - format_of(param.dtype).precision)
    middle = 1.25 + ulp * (number % (7 if ulp < 2.0**-6 else 1)).to(torch.float64)
    moved = ulp * up * (1 if dtype in INTEGERS else min(MOVED, int(0.25 / ulp)))
    words = (sign * middle).to(param.dtype)
    others = (sign * (middle + moved)).to(param.dtype)
    if kind == "master":
        master = (sign * (middle + ulp / 4)).to(dtype)
        return words, others, master, master.clone()
    if dtype in INTEGERS:
        # Half a spacing above the one word is half a spacing below the other.
        half = torch.full_like(words, torch.iinfo(dtype).max, dtype=torch.float64)
        along = up * (sign if kind == "ulps" else 1.0)
        return words, others, (half * along).to(dtype), (-half * along).to(dtype)
    difference = words.to(torch.float64) - others.to(torch.float64)
    carried = difference if kind == "plus" else -difference
    return words, others, torch.zeros_like(words), carried.to(dtype)


def _value(wide: Tensor, word: Tensor, second: Tensor, kind: Kind) -> Tensor:
    if kind == "master":
        return second.to(torch.float64)
    if kind == "bits":
        return join_master(word, second).to(torch.float64)
    if kind == "ulps":
        return wide + second.to(torch.float64) * (_half_spacing(word) / torch.iinfo(second.dtype).max)
    return wide + second.to(torch.float64) if kind == "plus" else wide - second.to(torch.float64)


def _master(word: Tensor, second: Tensor, kind: Kind) -> Tensor:
    if kind == "master":
        return second.to(torch.float32)
    return _value(word.to(torch.float64), word, second, kind).to(torch.float32)


def _half_spacing(word: Tensor) -> Tensor:
    """Half the spacing at a word away from zero, float64."""
    return gap(word, word.to(torch.float64)) / 2
