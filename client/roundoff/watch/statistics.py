"""The statistics of numerics §4, from the words before and after a step and the intended update.

`Meter` adds up one tensor's row on its own device and never synchronises with the host, so a sampled step
costs kernels and no wait. `measure` and `measure_moment` are the same for people: tensors in, `Sums` out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from roundoff.metrics import COUNTS, HEADROOM_BINS, HEADROOM_HIGH, HEADROOM_LOW, ROW, SUMS, Sums
from roundoff.numerics import format_of
from roundoff.numerics.formats import exponent

from .stored import Stored, stored_between

CHUNK = 1 << 17
"""Elements measured at a time: their temporaries stay in cache and memory stays bounded."""

_COLUMN = {name: index for index, name in enumerate(ROW)}


class Meter:
    """Adds up the statistics of one parameter tensor at one step, chunk by chunk, on `device`.

    `row` is (len(ROW),) float64 in the order of `metrics.ROW`, `bins` (2, HEADROOM_BINS) float64: element
    counts and Σu². All arguments of the methods are flat tensors of one length, or None where absent.
    """

    def __init__(self, device: torch.device) -> None:
        self.row = torch.zeros(len(ROW), dtype=torch.float64, device=device)
        # One bin more than there are: u = 0 and non-finite elements go there and are cut off.
        self._bins = torch.zeros(2, HEADROOM_BINS + 1, dtype=torch.float64, device=device)

    @property
    def bins(self) -> Tensor:
        return self._bins[:, :HEADROOM_BINS]

    def _add(self, **figures: Tensor) -> None:
        columns = [_COLUMN[name] for name in figures]
        self.row[columns] += torch.stack(list(figures.values()))

    def skip(self) -> None:
        """Count one step that a loss scaler skipped."""
        self.row[_COLUMN["skipped"]] += 1

    def update(
        self,
        hi: Tensor,
        hi_after: Tensor,
        u: Tensor,
        stored: Stored,
        decay: Tensor | None = None,
    ) -> None:
        """Measure one chunk: the visible words, the intended update (float32 or wider), what is stored."""
        finite = u.isfinite() & hi.isfinite() & hi_after.isfinite() & stored.finite()
        u = torch.where(finite, u, 0.0)
        before, after = _wide(hi, finite), _wide(hi_after, finite)
        seen = after - before
        applied = torch.where(finite, stored.applied(seen), 0.0)
        attempted = u != 0
        form = format_of(hi.dtype)
        self._add(
            numel=_count(torch.ones_like(finite)),
            nonfinite=_count(~finite),
            attempted=_count(attempted),
            lost=_count(attempted & (applied == 0)),
            invisible=_count(attempted & (seen == 0)),
            unchanged=_count(finite & (seen == 0)),
            underflowed=_count(attempted & (u.abs() <= form.smallest / 2)),
        )
        u64, a64, s64 = u.to(torch.float64), applied.to(torch.float64), seen.to(torch.float64)
        w64 = torch.where(finite, stored.value(hi), 0.0)
        self._add(
            sum_uu=u64.dot(u64),
            sum_ua=u64.dot(a64),
            sum_aa=a64.dot(a64),
            sum_us=u64.dot(s64),
            sum_ss=s64.dot(s64),
            sum_ww=w64.dot(w64),
        )
        self._headroom(u64, stored.resolution(before, u))
        if decay is not None:
            trying = finite & (decay != 0) & decay.isfinite()
            self._add(
                decay_attempted=_count(trying),
                decay_lost=_count(trying & stored.keeps(hi, decay)),
            )

    def _headroom(self, u64: Tensor, resolution: Tensor) -> None:
        # r is a power of two, so floor(log2(|u| / r)) is the difference of two exponents, exactly.
        k = exponent(u64) - resolution
        index = (k - HEADROOM_LOW).clamp_(0, HEADROOM_BINS - 1).masked_fill_(u64 == 0, HEADROOM_BINS)
        self._bins[0].scatter_add_(0, index, torch.ones_like(u64))
        self._bins[1].scatter_add_(0, index, u64 * u64)

    def moment(
        self,
        v: Tensor,
        v_after: Tensor,
        grad: Tensor,
        beta2: float,
        v_lo: Tensor | None = None,
        v_lo_after: Tensor | None = None,
    ) -> None:
        """Measure the second moment of one chunk: stored words before and after, and the gradient."""
        g = grad.to(torch.float64)
        kept = v.to(torch.float64)
        same = v_after == v
        if v_lo is not None and v_lo_after is not None:
            kept = kept + v_lo.to(torch.float64)
            same = same & (v_lo_after == v_lo)
        square = g * g
        finite = g.isfinite() & kept.isfinite()
        attempted = finite & (square != kept) if beta2 < 1 else torch.zeros_like(finite)
        stuck = attempted & same
        share = (1.0 - beta2) * square
        self._add(
            v_attempted=_count(attempted),
            v_stuck=_count(stuck),
            v_stuck_high=_count(stuck & (kept > square)),
            v_underflowed=_count(finite & (g != 0) & (share <= format_of(v.dtype).smallest / 2)),
            zero_grad=_count(g == 0),
        )

    def finish(self) -> None:
        """Read the evidence off the histogram, once all chunks are in."""
        k = torch.arange(HEADROOM_LOW, HEADROOM_HIGH + 1, dtype=torch.float64, device=self.row.device)
        self._add(expected_roundings=self.bins[0].dot(torch.exp2(k + 0.5).clamp_max(1.0)))

    def sums(self) -> Sums:
        """As `Sums`; this waits for the device."""
        row, (counts, energy) = self.row.tolist(), self.bins.tolist()
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
    meter.finish()
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

    `v`, `v_after` and the optional second words: stored before and after, one dtype, any shape; `grad`: the
    gradient of that step, same shape. Raises ValueError for shapes that differ.
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


def _count(mask: Tensor) -> Tensor:
    return mask.sum()


def _wide(words: Tensor, finite: Tensor) -> Tensor:
    return torch.where(finite, words.to(torch.float32), 0.0)
