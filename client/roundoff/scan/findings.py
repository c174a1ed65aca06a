"""What the counts mean, in the words of a colleague, with the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from roundoff.metrics import name_some
from roundoff.numerics import format_of, round_to
from roundoff.watch.preflight_checks import never_decays

from .look import TensorFacts

Kind = Literal["ones", "zeros", "unchanged", "narrow", "state", "counter", "nonfinite"]

KINDS: tuple[Kind, ...] = ("nonfinite", "ones", "unchanged", "state", "counter", "narrow", "zeros")
"""What matters most first."""

ENOUGH = 16
"""Elements from which a share says something."""

LARGE_SHARE = 0.5
SIXTEEN = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong in one tensor, or in several alike.

    `share`: of their elements, where it is one; the smallest of several. `says` has `{share}` in its place until
    findings are put together.
    """

    kind: Kind
    tensors: tuple[str, ...]
    says: str
    share: float | None = None

    @property
    def where(self) -> str:
        """The tensors by name, as many as one reads."""
        return name_some(self.tensors)


def findings_of(facts: TensorFacts, numbers: Mapping[str, Any]) -> Iterator[Finding]:
    """What is to be said of one tensor; `numbers` are the plain values saved beside it."""
    if facts.numel and facts.nonfinite:
        share = facts.nonfinite / facts.numel
        yield Finding("nonfinite", (facts.name,), "{share} of entries are not finite", share)
    if facts.dtype in SIXTEEN and _last_part(facts.name) == "step":
        yield _counter(facts, SIXTEEN[facts.dtype])
        return
    yield from _second_moment(facts, numbers)
    if not facts.is_float or facts.numel < ENOUGH:
        return
    if facts.ones >= LARGE_SHARE * facts.numel:
        yield _ones(facts)
    if facts.zeros == facts.numel:
        yield Finding("zeros", (facts.name,), "every entry is exactly 0", 1.0)
    elif facts.narrow == facts.numel > facts.ones + facts.zeros:
        yield Finding(
            "narrow",
            (facts.name,),
            "float32, but every entry is a bfloat16 value: what stood below the eighth binary digit was lost when it "
            "was saved, loaded or copied through bfloat16",
            1.0,
        )
    if facts.same is not None and facts.same >= LARGE_SHARE * facts.numel:
        yield _unchanged(facts)


def _ones(facts: TensorFacts) -> Finding:
    share = facts.ones / facts.numel
    says = "{share} of entries are exactly 1.0: never trained, or every step was rounded away"
    dtype = SIXTEEN.get(facts.dtype)
    if dtype is not None:
        p = format_of(dtype).precision
        says += f" (at 1.0 {facts.dtype} takes no step of less than 2^-{p + 1} down or 2^-{p} up)"
    return Finding("ones", (facts.name,), says, share)


def _unchanged(facts: TensorFacts) -> Finding:
    same = facts.same or 0
    share = same / facts.numel
    says = "{share} of the words are bit for bit the same in both checkpoints"
    if facts.dtype in SIXTEEN:
        says += "; normal where a master or a second word keeps the rest, lost updates where nothing does"
    return Finding("unchanged", (facts.name,), says, share)


def _counter(facts: TensorFacts, dtype: torch.dtype) -> Finding:
    limit = 2 ** format_of(dtype).precision
    at = "" if facts.last is None else f" (it stands at {facts.last:g})"
    return Finding("counter", (facts.name,), f"the step counter is {facts.dtype} and stops at {limit}{at}")


def _second_moment(facts: TensorFacts, numbers: Mapping[str, Any]) -> Iterator[Finding]:
    if facts.dtype not in SIXTEEN or _last_part(facts.name) not in SECOND_MOMENTS:
        return
    beta2 = _beta2(facts.name, numbers)
    if not never_decays(beta2, SIXTEEN[facts.dtype]):
        return
    rounded = float(round_to(torch.tensor(beta2, dtype=torch.float64), SIXTEEN[facts.dtype]))
    says = (
        f"the second moment is {facts.dtype}: at β2 = {beta2:g} one step changes it by less than its spacing, so it "
        "sticks"
    )
    if rounded == 1:
        says += f", and β2 itself rounds to {rounded:g}"
    yield Finding("state", (facts.name,), says)


def _beta2(name: str, numbers: Mapping[str, Any]) -> float:
    """β2 of the optimizer whose state this is, as far as the file tells; else the usual 0.999."""
    before = name.rsplit("state.", 1)[0]
    found = [
        value
        for key, value in numbers.items()
        if key.startswith(f"{before}param_groups.") and key.endswith("betas.1") and isinstance(value, float)
    ]
    return max(found, default=0.999)


def _last_part(name: str) -> str:
    return name.rsplit(".", 1)[-1]
