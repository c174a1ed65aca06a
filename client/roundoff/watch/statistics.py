"""The statistics of numerics §4, from the words before and after a step and the intended update.

`Meter` adds up one tensor's row on its own device and never synchronises with the host, so a sampled step
costs kernels and no wait. `measure` and `measure_moment` are the same for people: tensors in, `Sums` out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from roundoff.metrics import COUNTS, EVIDENCE, HEADROOM_BINS, HEADROOM_HIGH, HEADROOM_LOW, ROW, SUMS, Sums
from roundoff.numerics import format_of, join_master
from roundoff.numerics.formats import exponent

from .stored import Stored, stored_between

CHUNK = 1 << 17
"""Elements measured at a time: their temporaries stay in cache and memory stays bounded."""

_F32_TINY = torch.finfo(torch.float32).tiny
_COLUMN = {name: index for index, name in enumerate(ROW)}


class Meter:
    """Adds up the statistics of one parameter tensor at one step, chunk by chunk, on `device`.

    All tensors given to the methods are flat, of one length, or None where absent. Nothing here waits for the
    device, except that on a CPU a chunk without non-finite elements takes a shorter way.
    """

    def __init__(self, device: torch.device, *, headroom: bool = True) -> None:
        self.headroom = headroom
        """Whether a backend that can do without the histograms has to make them; this class always does."""
        self.error: Exception | None = None
        """What went wrong while measuring; the step itself went on."""
        self.found_inf: Tensor | None = None
        """0-dim on the device: not 0 where a loss scaler made the step do nothing; then it counts as skipped."""
        self.share = 1.0
        """What part of the tensor is measured: the figures are those of the part over it, an estimate of the whole."""
        self._device = device
        self._totals: dict[str, Tensor] = {}
        self._binned: Tensor | None = None
        self._taken: Tensor | None = None
        self._binned_by_kernel: Tensor | None = None

    def take(self, row: Tensor, bins: Tensor | None) -> None:
        """Add what a kernel has measured itself: a row and bins, float64, as `row` and `bins` give them."""
        self._taken = row if self._taken is None else self._taken + row
        if bins is not None:
            self._binned_by_kernel = bins if self._binned_by_kernel is None else self._binned_by_kernel + bins

    @property
    def bins(self) -> Tensor:
        """(2, HEADROOM_BINS) float64 on the device: element counts and Σu² by headroom."""
        binned = self._headroom_so_far()
        if self._binned_by_kernel is not None:
            binned = binned + self._binned_by_kernel
        if self.share < 1:
            binned = torch.stack(((binned[0] / self.share).round(), binned[1] / self.share))
        return binned if self.found_inf is None else torch.where(self.found_inf == 0, binned, 0.0)

    def row(self) -> Tensor:
        """(len(ROW),) float64 on the device, in the order of `metrics.ROW`; not to be written to."""
        if self._taken is None or self._totals:
            row = self._measured_here()
            row = row if self._taken is None else row + self._taken
        else:
            row = self._taken
        if self.share < 1:
            row = self._scaled(row)
        if self.found_inf is None:
            return row
        skipped = torch.zeros_like(row)
        skipped[_COLUMN["numel"]], skipped[_COLUMN["skipped"]] = row[_COLUMN["numel"]], 1.0
        return torch.where(self.found_inf == 0, row, skipped)

    def _scaled(self, row: Tensor) -> Tensor:
        """A row of the whole tensor; what was seen of roundings stays what was seen."""
        scaled = row / self.share
        scaled[: len(COUNTS)].round_()
        scaled[_COLUMN[EVIDENCE]] = row[_COLUMN[EVIDENCE]]
        return scaled

    def _measured_here(self) -> Tensor:
        if not self._totals:
            return torch.zeros(len(ROW), dtype=torch.float64, device=self._device)
        counts = self._stacked(COUNTS, torch.int64).to(torch.float64)
        k = torch.arange(HEADROOM_LOW, HEADROOM_HIGH + 1, dtype=torch.float64, device=self._device)
        evidence = self._headroom_so_far()[0].dot(torch.exp2(k + 0.5).clamp_max_(1.0))
        return torch.cat((counts, self._stacked(SUMS, torch.float64), evidence.unsqueeze(0)))

    def _headroom_so_far(self) -> Tensor:
        if self._binned is None:
            self._binned = torch.zeros(2, HEADROOM_BINS, dtype=torch.float64, device=self._device)
        return self._binned

    def _stacked(self, names: tuple[str, ...], dtype: torch.dtype) -> Tensor:
        zero = torch.zeros((), dtype=dtype, device=self._device)
        return torch.stack([self._totals.get(name, zero) for name in names])

    def add(self, **figures: Tensor | int) -> None:
        """Add to some of the figures: 0-dim tensors on the device (int64 for counts), or whole numbers."""
        for name, value in figures.items():
            tensor = value if isinstance(value, Tensor) else torch.full((), value, device=self._device)
            self._totals[name] = self._totals[name] + tensor if name in self._totals else tensor

    def update(
        self,
        hi: Tensor,
        hi_after: Tensor,
        u: Tensor,
        stored: Stored,
        decay: Tensor | None = None,
    ) -> Tensor | None:
        """Measure one chunk: the visible words, the intended update (float32 or wider), what is stored.

        Returns where the elements are finite, None if they all are; only those count beyond `nonfinite`.
        """
        before = hi.to(torch.float32)
        seen = hi_after.to(torch.float32) - before
        applied = stored.applied(seen)
        value = stored.value(hi)
        finite = _finite(u, seen) if applied is seen else _finite(u, seen, applied)
        numel = u.numel()
        bad: Tensor | int = 0
        if finite is not None:
            u, applied, value = (torch.where(finite, x, 0.0) for x in (u, applied, value))
            before, seen = (torch.where(finite, x, 0.0) for x in (before, seen))
            bad = numel - torch.count_nonzero(finite)
        attempted = torch.count_nonzero(u)
        self.add(numel=numel, nonfinite=bad, attempted=attempted, sum_ww=value.dot(value))
        self.add(unchanged=numel - bad - torch.count_nonzero(seen))
        u64 = u.to(torch.float64)
        uu = u64 * u64
        self._products(u64, applied, seen, attempted)
        self.add(sum_uu=uu.sum(), underflowed=self._headroom(u, uu, before, stored, numel - attempted, hi))
        if decay is not None:
            self._decay(hi, decay, stored, finite)
        return finite

    def _products(self, u64: Tensor, applied: Tensor, seen: Tensor, attempted: Tensor) -> None:
        # The product of two non-zero numbers of binary32's range is not zero in binary64: it counts as well.
        a64 = applied.to(torch.float64)
        ua, aa = u64 * a64, a64.dot(a64)
        lost, sum_ua = attempted - torch.count_nonzero(ua), ua.sum()
        self.add(lost=lost, sum_ua=sum_ua, sum_aa=aa)
        if applied is seen:
            self.add(invisible=lost, sum_us=sum_ua, sum_ss=aa)
            return
        s64 = seen.to(torch.float64)
        us = u64 * s64
        self.add(invisible=attempted - torch.count_nonzero(us), sum_us=us.sum(), sum_ss=s64.dot(s64))

    def _headroom(
        self, u: Tensor, uu: Tensor, before: Tensor, stored: Stored, zeros: Tensor, hi: Tensor
    ) -> Tensor | int:
        """Bin the chunk's headroom; return how many updates are below the range of the storage format."""
        limit = format_of(hi.dtype).smallest / 2
        size = u.abs()
        # One look for all: of 0 and below binary32's normal range an exponent cannot be read off 32 bits.
        none_small = u.device.type == "cpu" and not int(torch.count_nonzero(size <= max(limit, _F32_TINY)))
        quick = none_small and u.dtype == torch.float32
        exponents = (size.view(torch.int32) >> 23).sub_(127) if quick else exponent(u.to(torch.float64))
        # r is a power of two, so floor(log2(|u| / r)) is the difference of two exponents, exactly.
        k = exponents - stored.resolution(before, u)
        index = k.sub_(HEADROOM_LOW).clamp_(0, HEADROOM_BINS - 1).to(torch.int64)
        bins = self._headroom_so_far()
        bins[0].scatter_add_(0, index, torch.ones_like(uu))
        bins[1].scatter_add_(0, index, uu)
        bins[0, 0] -= zeros  # u = 0 has fallen into the lowest bin, with no energy
        return 0 if none_small else torch.count_nonzero(size <= limit) - zeros

    def _decay(self, hi: Tensor, decay: Tensor, stored: Stored, finite: Tensor | None) -> None:
        trying = decay != 0
        for where in (finite, _finite(decay)):
            trying = trying if where is None else trying & where
        # Not the complement of what moved: a pair at a tie heals even when nothing is added to it.
        kept = stored.keeps(hi, decay) & trying
        self.add(decay_attempted=torch.count_nonzero(trying), decay_lost=torch.count_nonzero(kept))

    def moment(
        self,
        v: Tensor,
        v_after: Tensor,
        grad: Tensor,
        beta2: float,
        v_lo: Tensor | None = None,
        v_lo_after: Tensor | None = None,
        *,
        counted: Tensor | None = None,
    ) -> None:
        """Measure the second moment of one chunk: stored words before and after, and the gradient.

        `counted` is what `update` returned for the chunk: elements elsewhere do not count.
        """
        g = grad.to(torch.float64)
        kept, form = v.to(torch.float64), format_of(v.dtype)
        moved = _words(v_after) != _words(v)
        if v_lo is not None and v_lo_after is not None:
            moved |= _words(v_lo_after) != _words(v_lo)
            if v_lo.dtype == torch.int16:
                kept, form = join_master(v, v_lo).to(torch.float64), format_of(torch.float32)
            else:
                kept = kept + v_lo.to(torch.float64)
        square = g * g
        away = square - kept if beta2 < 1 else torch.zeros_like(kept)
        finite = _finite(square, kept)
        if counted is not None:
            finite = counted if finite is None else finite & counted
            g = torch.where(counted, g, 1.0)  # not a zero gradient
        if finite is not None:
            away, square = torch.where(finite, away, 0.0), torch.where(finite, square, 0.0)
        away_stuck = away.masked_fill(moved, 0.0)
        zeros = g.numel() - torch.count_nonzero(square)
        limit = form.smallest / 2 / (1.0 - beta2) if beta2 < 1 else math.inf
        self.add(
            v_attempted=torch.count_nonzero(away),
            v_stuck=torch.count_nonzero(away_stuck),
            v_stuck_high=torch.count_nonzero(away_stuck.clamp_max_(0.0)),
            v_underflowed=torch.count_nonzero(square <= limit) - zeros,
            zero_grad=g.numel() - torch.count_nonzero(g),
        )

    def sums(self) -> Sums:
        """As `Sums`; this waits for the device."""
        row, (counts, energy) = self.row().tolist(), self.bins.tolist()
        figures: dict[str, int | float] = {name: int(row[_COLUMN[name]]) for name in COUNTS}
        figures |= {name: row[_COLUMN[name]] for name in SUMS}
        return Sums(**figures, headroom=tuple(map(int, counts)), headroom_energy=tuple(energy))  # type: ignore[arg-type]


def measure(
    param: Tensor,
    param_after: Tensor,
    intended: Tensor,
    lo: Tensor | None = None,
    lo_after: Tensor | None = None,
    decay: Tensor | None = None,
    *,
    master: Tensor | None = None,
    master_after: Tensor | None = None,
) -> Sums:
    """The statistics of one parameter tensor at one step (numerics §4), all but the second moment's.

    Args:
        param, param_after: the visible words before and after, one storage dtype, any shape.
        intended: u, float32 or float64, same shape.
        lo, lo_after: second words of a pair in the same dtype, or int16 remainders of an exact master.
        decay: the part of u that is weight decay, taken alone, same units and shape.
        master, master_after: float32 masters; then the applied update, r and Σw² are the master's.

    Raises TypeError for dtypes that do not fit together and ValueError for shapes that differ or words
    given before and not after.
    """
    tensors = {
        "param_after": param_after, "intended": intended, "lo": lo, "lo_after": lo_after,
        "decay": decay, "master": master, "master_after": master_after,
    }  # fmt: skip
    _check_shapes(param, tensors)
    if (lo is None) != (lo_after is None) or (master is None) != (master_after is None):
        raise ValueError("give lo and lo_after, or master and master_after, both or neither")
    if param_after.dtype != param.dtype:
        raise TypeError(f"param is {param.dtype} and param_after {param_after.dtype}; they must be the same")
    meter = Meter(param.device)
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for chunk in _chunks({"param": param, **given}):
        after = {
            name.removesuffix("_after"): words for name, words in chunk.items() if name.endswith("_after")
        }
        stored = stored_between(chunk, after)
        meter.update(chunk["param"], after["param"], chunk["intended"], stored, chunk.get("decay"))
    return meter.sums()


def measure_moment(
    v: Tensor,
    v_after: Tensor,
    grad: Tensor,
    beta2: float,
    v_lo: Tensor | None = None,
    v_lo_after: Tensor | None = None,
) -> Sums:
    """The `v_` figures and `zero_grad` of one second moment at one step (numerics §4); the rest is 0.

    `v`, `v_after` and the optional second words: stored before and after, one dtype, any shape (second words
    of int16 are the remainders of an exact float32 v); `grad`: the gradient of that step, same shape. Raises
    ValueError for shapes that differ.
    """
    tensors = {"v_after": v_after, "grad": grad, "v_lo": v_lo, "v_lo_after": v_lo_after}
    _check_shapes(v, tensors)
    meter = Meter(v.device)
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for chunk in _chunks({"v": v, **given}):
        meter.moment(
            chunk["v"], chunk["v_after"], chunk["grad"], beta2, chunk.get("v_lo"), chunk.get("v_lo_after")
        )
    return meter.sums()


def _check_shapes(first: Tensor, others: dict[str, Tensor | None]) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != first.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(first.shape)}")


def _chunks(tensors: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    flat = {name: tensor.detach().reshape(-1) for name, tensor in tensors.items()}
    numel = next(iter(flat.values())).numel()
    for start in range(0, numel, CHUNK):
        yield {name: tensor[start : start + CHUNK] for name, tensor in flat.items()}


def _words(tensor: Tensor) -> Tensor:
    """A tensor's stored words as integers: whether one has changed does not depend on what it stands for."""
    return tensor.contiguous().view(
        {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )


def _finite(*tensors: Tensor) -> Tensor | None:
    """Where all are finite; None if they are everywhere, which only a CPU can tell without waiting."""
    if tensors[0].device.type == "cpu" and math.isfinite(sum(float(tensor.sum()) for tensor in tensors)):
        return None  # a sum with NaN or infinity in it is not finite
    where = tensors[0].isfinite()
    for tensor in tensors[1:]:
        where = where & tensor.isfinite()
    return where
