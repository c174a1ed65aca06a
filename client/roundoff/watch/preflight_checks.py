"""What can be said of a training before its first step: which numbers the storage formats cannot hold (numerics §6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.metrics import cure, name_some, percent
from roundoff.metrics.cures import BYTES_PER_PARAMETER, FLOAT32, PAIRS
from roundoff.numerics import Format, format_of, round_to
from roundoff.wire import Finding
from roundoff.wire.ingest import MOST_NAMED

from .roster import Member, roster
from .shards import local

Kind = Literal[
    "uncompensated",
    "second-moment",
    "decay",
    "eps",
    "small-steps",
    "at-one",
    "counter",
    "narrow-state",
    "loaded-state",
]

SIXTEEN = (torch.bfloat16, torch.float16)
PASS = 1 << 22
"""Elements looked at in one go."""

LOOKED_AT = 1 << 26
"""Weights looked at for the share that a step would not move; of more, evenly spread ones."""

MUCH = 0.1
"""Share of weights that a step of lr would not move, from which it is said."""


@dataclass(frozen=True, slots=True)
class Warned:
    """One finding: what, why in numbers, and what to do. `layers` are those that it is about, if not all."""

    kind: Kind
    what: str
    why: str
    cure: str
    layers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it in one paragraph."""
        return f"{self.said}. {self.cure}."

    def to_wire(self) -> Finding:
        """As it is sent: of many layers the first ones are named."""
        return Finding(
            kind=self.kind,
            what=self.what[:2000],
            why=self.why[:2000],
            cure=self.cure[:2000],
            layers=list(self.layers[:MOST_NAMED]),
        )

    @property
    def said(self) -> str:
        """What and why in one sentence, without what to do."""
        where = f"{name_some(self.layers)}: " if self.layers else ""
        return f"{where}{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an optimizer does with tensors of one dtype. `betas` and `eps` None: it has none.

    `strategy` is one of `roundoff.optim.STRATEGIES`, or any other name for an optimizer that is not ours and keeps
    plain words.
    `state` is the dtype of its second moment.
    """

    dtype: torch.dtype
    lr: float
    betas: tuple[float, float] | None = (0.9, 0.999)
    eps: float | None = 1e-8
    weight_decay: float = 0.0
    strategy: str = "AdamW"
    state: torch.dtype | None = None

    @property
    def form(self) -> Format:
        """The storage format of the weights."""
        return format_of(self.dtype)

    @property
    def compensated(self) -> bool:
        """Whether what rounding drops of a weight is kept, or made up for on average."""
        return self.strategy in FLOAT32 | PAIRS | {"stochastic"}

    @property
    def ours(self) -> bool:
        """Whether it is CollageAdamW, whose arithmetic is float32 between the words."""
        return self.strategy in BYTES_PER_PARAMETER


def preflight(model: nn.Module, optimizer: Optimizer) -> list[Warned]:
    """What is bound to go wrong when this optimizer trains this model, most harmful first.

    Looks at dtypes, hyperparameters, weights and state as they are now; changes nothing and steps nothing. Raises
    ValueError as `watch` does if the two do not belong together.
    """
    return preflight_members(optimizer, roster(model, optimizer))


def preflight_members(optimizer: Optimizer, members: list[Member]) -> list[Warned]:
    """The same for some of the optimizer's parameters."""
    found: list[Warned] = []
    for settings, some in _groups(optimizer, members):
        names = tuple(member.name for member in some)
        found += [_about(names, len(members), one) for one in preflight_settings(settings)]
        found += _weights(settings, {member.name: local(member.param.detach()) for member in some})
    found += _state(optimizer, members)
    return found


def lines_of(findings: Sequence[Warned]) -> list[str]:
    """A line for each finding, and one that says what to do about them."""
    lines = [f"before the first step: {one.said}" for one in findings]
    if not findings:
        return lines
    others = len({one.cure for one in findings}) - 1
    more = " (what else each of them asks for: roundoff.watch.preflight)" if others else ""
    return [*lines, f"what to do: {findings[0].cure}{more}"]


def preflight_settings(settings: Settings) -> Iterator[Warned]:
    """What the hyperparameters alone say for weights of one 16-bit dtype; nothing for wider ones."""
    if settings.dtype not in SIXTEEN:
        return
    if not settings.compensated:
        advice = cure([settings.strategy])
        yield Warned(
            "uncompensated",
            f"{_short(settings.dtype)} weights with nothing that keeps what rounding drops",
            f"a step below half of a weight's spacing ({_power(-settings.form.precision - 1)} to "
            f"{_power(-settings.form.precision)} of the weight) leaves it as it was",
            advice.text.rstrip(".") if advice else "keep float32 masters",
        )
    yield from _second_moment(settings)
    yield from _decay(settings)
    yield from _eps(settings)


def predicted_lost(weights: Iterable[Tensor], settings: Settings) -> tuple[int, int]:
    """How many weights a step of ±lr would leave as they are, and how many there are.

    An update of AdamW is about lr long. Weights of any shape, in the dtype of `settings` or wider.
    """
    lost = numel = 0
    limit = _unmoved_from(settings)
    for tensor in weights:
        flat = tensor.detach().reshape(-1)
        numel += flat.numel()
        for start in range(0, flat.numel(), PASS):
            lost += int((flat[start : start + PASS].to(torch.float32).abs() >= limit).sum())
    return lost, numel


def small_steps(settings: Settings, lost: int, numel: int) -> Iterator[Warned]:
    """What `predicted_lost` means, if it is much."""
    if numel and lost >= MUCH * numel:
        yield Warned(
            "small-steps",
            f"{percent(lost / numel)} of {numel:,} weights would not move",
            f"an update is about lr = {settings.lr:.2g} long, below half the spacing of weights from "
            f"{_unmoved_from(settings):.2g} on",
            'CollageAdamW(…, strategy="plus") keeps such steps; the share grows as lr falls',
        )


def _unmoved_from(settings: Settings) -> float:
    """The power of two from which on half the spacing of what is stored is more than lr."""
    form = settings.form
    digits = form.precision * (2 if settings.strategy in PAIRS else 1)
    if settings.strategy in FLOAT32 or settings.strategy == "stochastic":
        return math.inf
    if settings.lr <= 0 or 2.0 ** (form.emin - digits) > settings.lr:
        return 0.0
    return 2.0 ** (math.floor(math.log2(settings.lr)) + digits + 1)


def _second_moment(settings: Settings) -> Iterator[Warned]:
    state = settings.state or settings.dtype
    if (
        settings.betas is None
        or state not in SIXTEEN
        or settings.strategy in FLOAT32 | {"plus", "fp32-state"}
    ):
        return
    beta2, p = settings.betas[1], format_of(state).precision
    if beta2 >= 1 or not never_decays(beta2, state):
        return
    rounded = float(round_to(torch.tensor(beta2, dtype=torch.float64), state))
    says = (
        f"β2 = {beta2:g} is {rounded:g} in {_short(state)}" if rounded == 1 else f"1 − β2 = {1 - beta2:.2g}"
    )
    yield Warned(
        "second-moment",
        f"the second moment in {_short(state)} never decays",
        f"{says}, and a step without a gradient would take {1 - beta2:.2g} of v away, less than half its spacing "
        f"({_power(-p - 1)} of it or more)",
        'CollageAdamW(…, strategy="plus") keeps a second word of it, or choose β2 = 0.95',
    )


def never_decays(beta2: float, state: torch.dtype) -> bool:
    """Whether what a step without a gradient takes away, 1 − β2 of v, is below half the spacing of every v."""
    return 1 - beta2 < 2.0 ** -(format_of(state).precision + 1)


def _decay(settings: Settings) -> Iterator[Warned]:
    rate = settings.lr * settings.weight_decay
    limit = 2.0 ** -(settings.form.precision + 1)
    if settings.compensated or not 0 < rate <= limit:
        return
    yield Warned(
        "decay",
        "weight decay does nothing",
        f"1 − lr·wd = 1 − {rate:.2g} rounds to 1 in {_short(settings.dtype)}, as for every lr·wd up to "
        f"{_power(-settings.form.precision - 1)}",
        'CollageAdamW(…, strategy="plus") makes it part of an update that is kept',
    )


def _eps(settings: Settings) -> Iterator[Warned]:
    state = settings.state or settings.dtype
    if settings.ours or settings.eps is None or settings.eps <= 0 or state not in SIXTEEN:
        return
    if float(round_to(torch.tensor(settings.eps, dtype=torch.float64), state)) == 0:
        smallest = format_of(state).smallest
        yield Warned(
            "eps",
            f"eps = {settings.eps:g} is 0 in {_short(state)}",
            f"nothing below {smallest / 2:.2g} is stored, so an element without a gradient divides 0 by 0",
            f"set eps to {2 * smallest:.1g} or more, or keep the state in float32",
        )


def stuck_at_one(settings: Settings, names: Iterable[str]) -> Iterator[Warned]:
    """What it means that all entries of these vectors are 1, if a step of lr does not move them."""
    half = 2.0 ** -(settings.form.precision + 1)
    layers = tuple(names)
    if layers and not settings.compensated and 0 < settings.lr < half:
        yield Warned(
            "at-one",
            "every entry is 1, and a step of lr does not move it",
            f"lr = {settings.lr:.2g}, and {_short(settings.dtype)} takes no step of less than "
            f"{_power(-settings.form.precision - 1)} = {half:.2g} there",
            'CollageAdamW(…, strategy="plus") moves it; else it stays as it is for the whole run',
            layers,
        )


def _weights(settings: Settings, weights: Mapping[str, Tensor]) -> Iterator[Warned]:
    """What lr means for the weights as they are."""
    if settings.dtype not in SIXTEEN or settings.betas is None or settings.lr <= 0:
        return
    norms = (name for name, weight in weights.items() if weight.dim() <= 1 and bool((weight == 1).all()))
    yield from stuck_at_one(settings, norms)
    every = -(-sum(weight.numel() for weight in weights.values()) // LOOKED_AT)
    some = (weight.reshape(-1)[::every] for weight in weights.values())
    yield from small_steps(settings, *predicted_lost(some, settings))


def _state(optimizer: Optimizer, members: list[Member]) -> Iterator[Warned]:
    """What the state says that is there already, as after a load."""
    counters, narrow = [], []
    for member in members:
        for key, value in optimizer.state.get(member.param, {}).items():
            if not isinstance(value, Tensor):
                continue
            value = local(value)
            if key == "step" and value.dtype in SIXTEEN:
                counters.append((member.name, value))
            elif value.dtype == torch.float32 and value.numel() > 1 and _holds_bfloat16_only(value):
                narrow.append(f"{member.name} ({key})")
    if counters:
        dtype = counters[0][1].dtype
        yield Warned(
            "counter",
            f"the step counter is {_short(dtype)}",
            f"{_short(dtype)} cannot count past {2 ** format_of(dtype).precision}, so bias correction goes wrong",
            "keep it in float32",
            tuple(name for name, _ in counters),
        )
    if narrow:
        yield Warned(
            "narrow-state",
            "float32 state that holds bfloat16 values only",
            "what stood below the eighth binary digit is gone, as after a load through the dtype of the weights",
            "load the state with its own dtypes",
            tuple(narrow),
        )


def _holds_bfloat16_only(value: Tensor) -> bool:
    flat = value.detach().reshape(-1)
    if not bool(flat.any()):
        return False  # nothing there yet
    parts = (flat[start : start + PASS] for start in range(0, flat.numel(), PASS))
    return all(bool((part.view(torch.int32) & 0xFFFF == 0).all()) for part in parts)


def _groups(optimizer: Optimizer, members: list[Member]) -> Iterator[tuple[Settings, list[Member]]]:
    """Members that are alike in group, dtype and the dtype of their state, and what the optimizer does with them."""
    alike: dict[tuple[int, torch.dtype, str, torch.dtype | None], list[Member]] = {}
    for member in members:
        state = optimizer.state.get(member.param, {}).get("exp_avg_sq")
        dtype = state.dtype if isinstance(state, Tensor) else None
        alike.setdefault((member.group, member.param.dtype, member.strategy, dtype), []).append(member)
    for (number, dtype, strategy, state_dtype), some in alike.items():
        group = optimizer.param_groups[number]
        betas = group.get("betas")
        yield (
            Settings(
                dtype,
                float(group.get("lr", 0.0)),
                None if betas is None else (float(betas[0]), float(betas[1])),
                None if group.get("eps") is None or betas is None else float(group["eps"]),
                float(group.get("weight_decay", 0.0)),
                strategy,
                state_dtype,
            ),
            some,
        )


def _about(names: tuple[str, ...], total: int, found: Warned) -> Warned:
    """Name the layers unless the finding is about all of them."""
    layers = () if len(names) == total else names
    return Warned(found.kind, found.what, found.why, found.cure, layers)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _power(exponent: int) -> str:
    return f"2^{exponent}"


def describe(found: Iterable[Warned]) -> dict[str, Any]:
    """For JSON."""
    return {"findings": [asdict(one) for one in found]}
