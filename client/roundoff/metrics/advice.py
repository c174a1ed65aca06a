"""The advisor (numerics §6): what every strategy would lose of the same updates, and the cheapest that loses little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .causes import Causes, causes
from .cures import BYTES_PER_PARAMETER, FLOAT8, MOMENT_WORD, is_judged, unmarked
from .figures import descent_efficiency, invisible_fraction, lost_fraction, share, v_stuck_fraction
from .storages import PRECISION, Loss, kept_by, losses
from .totals import Totals
from .words import percent

TOLERABLE = 0.01
"""A strategy is recommended only if it loses less than this share of the descent, of every layer."""

STUCK = 0.5
"""From this share on a second moment that sticks, or lies below the range of its format, is held against a strategy."""

FLOAT32_MOMENT = frozenset({"float32", "exact", "fp32-state", "fp32-master"})
"""Strategies that keep the second moment as a float32 number."""

Against = Literal["range", "beta2", "stuck"]
"""What of the second moment: below the format's range, β2 that rounds to 1, or stuck as measured."""

ONLY_FOR = {"exact": ("bfloat16",)}
"""Strategies that are not there for every 16-bit dtype."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One layer as it was measured: what is stored of it, and its sums over some samples.

    `strategy` and `dtype` as layers are declared with ("AdamW", "plus", …; "bfloat16", …). `headroom` and
    `headroom_energy` are the histograms of numerics §4 added up over the same samples as `totals`. `lr` and `beta2`
    are those of the newest sample, None where unknown or where the optimizer has none.
    """

    name: str
    strategy: str
    dtype: str
    totals: Totals
    headroom: Sequence[float]
    headroom_energy: Sequence[float]
    lr: float | None = None
    beta2: float | None = None

    @property
    def concerned(self) -> bool:
        """Whether 16-bit strategies are a question here: 16-bit words that something was seen to be added to."""
        told = self.dtype in PRECISION and is_judged(self.strategy) and sum(self.headroom) > 0
        return told and not self.stored.startswith(FLOAT8)

    @property
    def stored(self) -> str:
        """The strategy, whether all rows were measured or some."""
        return unmarked(self.strategy)


@dataclass(frozen=True, slots=True)
class Option:
    """One strategy as it would fare with the same updates.

    `lost_fraction` of the element updates and `descent_efficiency` (Σu·a / Σu²) are expected figures. Those `at_most`
    hold where the sample leaves it open, or where the second word of a pair is as coarse as it can get; and of the
    descent, with no update rounded up to make up for those that are lost. `noise` is Σ(a−u)² / Σu² of stochastic
    rounding. `against` says what of the second moment speaks against it, "" for nothing. `measured`: these are no
    forecasts, the weights are stored so now.
    """

    strategy: str
    bytes: int
    lost_fraction: float
    lost_at_most: float
    descent_efficiency: float
    descent_at_most: float
    noise: float = 0.0
    against: str = ""
    measured: bool = False

    @property
    def lost_descent(self) -> float:
        """Share of the descent that does not arrive on balance."""
        return max(0.0, 1.0 - self.descent_efficiency)

    @property
    def holds(self) -> bool:
        """Whether it loses little enough, in the worst case too, of the weight and of the second moment."""
        return not self.against and self.descent_at_most < TOLERABLE


@dataclass(frozen=True, slots=True)
class Advice:
    """What to store, and why. `str()` says it; the parts are here for a table.

    - `options`: every strategy for the model as a whole, cheapest first; `layers`: the same by layer.
    - `recommended`: the cheapest that holds for every layer, None where none does; `needing`: layers for which nothing
      cheaper would hold, worst first, and `least` what the others would do with.
    - `used`: strategies in use now, with `now` their bytes; `lr` the learning rate where all layers share one.
    - `efficiency`: Σu·a / Σu² as measured over the samples; `causes` of the losses.
    - `left_out`: layers that 16-bit strategies are no question for, or that attempted nothing.
    """

    options: tuple[Option, ...]
    layers: Mapping[str, tuple[Option, ...]]
    recommended: str | None
    needing: tuple[str, ...]
    least: str | None
    used: tuple[str, ...]
    now: int
    efficiency: float | None
    causes: Causes
    samples: int
    lr: float | None = None
    left_out: tuple[str, ...] = ()
    step: int | None = None

    @property
    def effective_lr(self) -> float | None:
        """lr · descent efficiency: the learning rate that has been arriving; None where either is unknown."""
        return None if self.lr is None or self.efficiency is None else self.lr * self.efficiency

    @property
    def rise(self) -> float | None:
        """How many times larger the steps get when everything arrives; None where next to nothing has arrived."""
        return 1 / self.efficiency if self.efficiency is not None and self.efficiency > TOLERABLE else None

    @property
    def changes(self) -> bool:
        """Whether something else is recommended than what is in use."""
        plain = {one if one in BYTES_PER_PARAMETER else "none" for one in self.used}
        return self.recommended is not None and plain != {self.recommended}

    def option(self, strategy: str) -> Option:
        """One of `options`. Raises KeyError for a strategy that is not among them."""
        return {one.strategy: one for one in self.options}[strategy]

    def __str__(self) -> str:
        from .counsel import counsel

        return counsel(self)


def advise(layers: Sequence[Observed], step: int | None = None) -> Advice:
    """Compare the strategies of numerics §3 on what was measured.

    Taken for granted: the updates stay what they were, so the figures are of weights and not of what a training makes
    of them. Raises ValueError where no layer with 16-bit words has attempted anything.
    """
    some = [layer for layer in layers if layer.concerned]
    if not some:
        raise ValueError(
            "nothing to compare: no layer in bfloat16 or float16 has attempted an update in a sample with histograms"
        )
    strategies = [
        name
        for name in BYTES_PER_PARAMETER
        if all(layer.dtype in ONLY_FOR.get(name, PRECISION) for layer in some)
    ]
    fates = {layer.name: {name: _fate(layer, name) for name in strategies} for layer in some}
    found = {
        layer.name: tuple(_option(name, [layer], [fates[layer.name][name]]) for name in strategies)
        for layer in some
    }
    model = tuple(_option(name, some, [fates[layer.name][name] for layer in some]) for name in strategies)
    recommended = next(
        (name for n, name in enumerate(strategies) if all(o[n].holds for o in found.values())), None
    )
    needing, least = _needing(found, strategies, recommended)
    totals = sum((layer.totals for layer in some), Totals())
    used = tuple(dict.fromkeys(layer.stored for layer in some))
    rates = {layer.lr for layer in some}
    return Advice(
        model,
        found,
        recommended,
        needing,
        least,
        used,
        max(BYTES_PER_PARAMETER.get(name, BYTES_PER_PARAMETER["none"]) for name in used),
        share(
            sum(layer.totals.sum_ua / layer.totals.samples for layer in some),
            sum(layer.totals.sum_uu / layer.totals.samples for layer in some),
        ),
        causes(totals, strategy=used[0] if len(used) == 1 else ""),
        max(layer.totals.samples for layer in some),
        rates.pop() if len(rates) == 1 else None,
        tuple(layer.name for layer in layers if not layer.concerned),
        step,
    )


@dataclass(frozen=True, slots=True)
class _Fate:
    """What a strategy does to one layer, in sums that add up over layers."""

    loss: Loss
    measured: bool
    against: Against | None


def _fate(layer: Observed, strategy: str) -> _Fate:
    now, then = kept_by(layer.stored), kept_by(strategy)
    loss = losses(layer, layer.dtype, now, then)
    totals = layer.totals
    if now == then and totals.attempted:
        # What is stored alike loses alike: no forecast where it was measured.
        lost = loss.count * (lost_fraction(totals) or 0.0)
        efficiency = descent_efficiency(totals) or 0.0
        if then == "chance":
            efficiency = 1.0  # on average; what was measured is that and noise
        missing, arrives = loss.energy * max(0.0, 1.0 - efficiency), loss.energy * efficiency
        loss = Loss(loss.count, loss.energy, lost, lost, missing, arrives, loss.noise)
    elif then in ("word", "chance") and now in ("pair", "float32") and totals.attempted:
        loss = _narrowed(loss, 1.0 - float(invisible_fraction(totals) or 0.0), chance=then == "chance")
    # By sample, for a layer with little evidence has a longer window.
    return _Fate(loss * (1 / max(totals.samples, 1)), now == then, against_moment(layer, strategy))


def _narrowed(loss: Loss, seen: float, *, chance: bool) -> Loss:
    """Bounds from the updates that the forward pass has seen, a share of min(1, |u| / gap) of them on average.

    So many would move under stochastic rounding. One word moves by those from half a gap on: of a share F of such
    updates at least F / 2 and at most F + (1 − F) / 2 are seen.
    """
    if chance:
        lost = loss.count * (1.0 - seen)
        return Loss(loss.count, loss.energy, lost, lost, 0.0, loss.energy, loss.noise)
    least, most = loss.count * max(0.0, 1.0 - 2.0 * seen), loss.count * min(1.0, 2.0 - 2.0 * seen)
    lost, at_most = max(loss.lost, least), min(loss.lost_at_most, most)
    return Loss(
        loss.count, loss.energy, min(lost, at_most), max(lost, at_most), loss.energy_at_most, loss.arrives, loss.noise
    )  # fmt: skip


def against_moment(layer: Observed, strategy: str) -> Against | None:
    """What speaks against a strategy because of how it keeps the second moment; None for nothing.

    A second moment in one word that cannot decay makes steps too small, however much of them the weight keeps.
    """
    totals, p = layer.totals, PRECISION[layer.dtype]
    if strategy in FLOAT32_MOMENT or (layer.beta2 is None and not totals.v_attempted):
        return None
    narrow = layer.stored not in FLOAT32_MOMENT
    if narrow and _much(_below(totals)):
        return "range"
    if strategy not in MOMENT_WORD:
        return None
    if layer.beta2 is not None and 0 < 1 - layer.beta2 <= 2.0 ** -(p + 1):
        return "beta2"
    return "stuck" if narrow and layer.stored != "plus" and _much(v_stuck_fraction(totals)) else None


def _below(totals: Totals) -> float | None:
    value: float | None = share(totals.v_underflowed, totals.numel - totals.zero_grad - totals.nonfinite)
    return value


def _much(value: float | None) -> bool:
    return value is not None and value > STUCK


def _said(against: Against, layers: Sequence[Observed]) -> str:
    """In words, for layers that all have the same against them."""
    totals = sum((layer.totals for layer in layers), Totals())
    dtype = layers[0].dtype
    if against == "range":
        return f"(1−β2)g² is below the range of {dtype} for {percent(_below(totals))}"
    if against == "beta2":
        return f"β2 = {layers[0].beta2:g} is 1 in {dtype}: v never decays"
    return f"v is stuck for {percent(v_stuck_fraction(totals))}"


def _option(strategy: str, layers: Sequence[Observed], fates: Sequence[_Fate]) -> Option:
    loss = sum((fate.loss for fate in fates), Loss())
    energy = loss.energy or 1.0
    against: dict[Against, list[Observed]] = {}
    for layer, fate in zip(layers, fates, strict=True):
        if fate.against:
            against.setdefault(fate.against, []).append(layer)
    most = max(against, key=lambda one: sum(layer.totals.numel for layer in against[one]), default=None)
    return Option(
        strategy,
        BYTES_PER_PARAMETER[strategy],
        loss.lost / loss.count,
        loss.lost_at_most / loss.count,
        loss.arrives / energy,
        max(0.0, 1.0 - loss.arrives / energy, loss.energy_at_most / energy),
        loss.noise / energy,
        _said(most, against[most]) if most else "",
        all(fate.measured for fate in fates),
    )


def _needing(
    found: Mapping[str, tuple[Option, ...]], strategies: Sequence[str], recommended: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Layers for which nothing before the recommended one holds, worst first; and what does for all the others."""
    if recommended is None:
        bad = [name for name, options in found.items() if not any(one.holds for one in options)]
        return tuple(bad), None
    place = strategies.index(recommended)
    needing = [name for name, options in found.items() if not any(one.holds for one in options[:place])]
    others = [options for name, options in found.items() if name not in needing]
    least = next(
        (name for n, name in enumerate(strategies[:place]) if others and all(o[n].holds for o in others)),
        None,
    )
    needing.sort(key=lambda name: -found[name][0].lost_descent)
    return tuple(needing), least
