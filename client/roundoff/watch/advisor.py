"""The advice on a watched run: what every strategy would have lost of its updates (numerics §6)."""

from __future__ import annotations

import math
from types import SimpleNamespace

from roundoff.delivery.sample import Sample
from roundoff.metrics import HEADROOM_BINS, ROW, Advice, Observed, Totals, advise as advise_on
from roundoff.wire import Layer

from .history import History


def advise(history: History) -> Advice:
    """What to store instead, from the samples in the verdict's window; before the warm-up is over from the newest one.

    Waits for the device. Raises ValueError where there is no sample with histograms, or none in which a layer with
    16-bit words attempted anything.
    """
    found = history.advice()
    if found is not None:
        return found
    sample = history.newest
    if sample is None:
        raise ValueError("advice needs a sample: call it after the first watched step")
    return advise_on(of_sample(sample, history.layers), sample.step)


def of_sample(sample: Sample, layers: list[Layer]) -> list[Observed]:
    """The layers of one sample, for `metrics.advise`. Raises ValueError for a sample without histograms."""
    if sample.headroom is None:
        raise ValueError("this sample has no histograms of headroom to compare strategies with")
    settings = {setting.group: setting for setting in sample.groups}
    known = {layer.index: layer for layer in layers}
    found = []
    for index, row, bins in zip(sample.layers, sample.sums.tolist(), sample.headroom.tolist(), strict=True):
        layer, setting = known[index], settings.get(known[index].group)
        beta2 = None if setting is None or math.isnan(setting.beta2) else setting.beta2
        totals = Totals.of(SimpleNamespace(**dict(zip(ROW, row, strict=True))))
        found.append(
            Observed(
                layer.name,
                layer.strategy,
                layer.dtype,
                totals,
                bins[:HEADROOM_BINS],
                bins[HEADROOM_BINS:],
                None if setting is None else setting.lr,
                beta2,
            )
        )
    return found
