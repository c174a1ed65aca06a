"""The verdict of a run in words, the same ones in the terminal, in an answer of the server and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figures import descent_efficiency, lost_fraction
from .verdict import State, Totals

NAMED_LAYERS = 3
"""Layers that a sentence names before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to tell the user: a state, one headline, and the numbers behind it in a sentence or two."""

    state: State | None
    headline: str
    explanation: str


def percent(share: float | None) -> str:
    """A share as per cent for reading: `71 %`, `0.3 %`, `n/a`."""
    if share is None:
        return "n/a"
    value = 100 * share
    return f"{value:.0f} %" if value == 0 or 10 <= value <= 99 or value >= 99.95 else f"{value:.1f} %"


def name_some(layers: Sequence[str]) -> str:
    """`a, b, c and 8 more`."""
    named, rest = layers[:NAMED_LAYERS], len(layers) - NAMED_LAYERS
    if rest > 0:
        return f"{', '.join(named)} and {rest} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def run_state(model: State | None, layers: Sequence[State | None]) -> State | None:
    """The state of a run: broken or stalling if the model or any layer is; else what the model says."""
    for state in ("broken", "stalling"):
        if model == state or state in layers:
            return state
    return model


def run_verdict(
    model: State | None,
    window: Totals,
    stalling: Sequence[str],
    broken: Sequence[str],
    layers: int,
    since_step: int | None = None,
) -> Verdict:
    """The verdict on a run.

    `model` and `window` are of the whole model; `stalling` and `broken` name layers, worst first, out of
    `layers` watched ones; `since_step` is the step at which the stall was first seen, if known.
    """
    state = run_state(model, ["stalling"] * bool(stalling) + ["broken"] * bool(broken))  # type: ignore[arg-type]
    if state is None:
        return Verdict(None, "No verdict yet.", "The first samples after the warm-up decide.")
    efficiency, lost = percent(descent_efficiency(window)), percent(lost_fraction(window))
    if state == "broken":
        where = f": {name_some(broken)}" if broken else ""
        return Verdict(
            state,
            f"Non-finite values in {len(broken) or 'some'} of {layers} layers.",
            f"NaN or infinity reached the weights or their updates{where}. This is not a rounding problem.",
        )
    if state == "idle":
        return Verdict(
            state,
            "Hardly any update is attempted.",
            "The learning rate or the gradients are zero or tiny, so precision is not what stops this run.",
        )
    if state == "healthy":
        return Verdict(
            state,
            "Precision is not hurting this run.",
            f"{efficiency} of the intended descent is stored; {lost} of the element updates are lost.",
        )
    return _stalling(model, efficiency, lost, stalling, layers, since_step)


def _stalling(
    model: State | None, efficiency: str, lost: str, stalling: Sequence[str], layers: int, since: int | None
) -> Verdict:
    when = "" if since is None else f"Since step {since:,}: "
    headline = (
        f"{len(stalling)} of {layers} layers {'loses' if len(stalling) == 1 else 'lose'} most of "
        f"{'its' if len(stalling) == 1 else 'their'} updates to rounding."
        if stalling
        else "Most of the updates are lost to rounding."
    )
    named = f" Worst: {name_some(stalling)}." if stalling else ""
    if model == "stalling":
        text = (
            f"{when}only {efficiency} of the intended descent is stored, {lost} of the element updates are "
            f"lost. The intended updates are healthy, so precision is the cause, not the learning rate or "
            f"the gradients.{named}"
        )
    else:
        which = "this layer hardly moves" if len(stalling) == 1 else "these layers hardly move"
        text = (
            f"{when}{which}, while the model as a whole still stores {efficiency} of its descent; the loss "
            f"need not show it.{named}"
        )
    return Verdict("stalling", headline, text[0].upper() + text[1:])
