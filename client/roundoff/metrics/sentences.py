"""The verdict of a run or a layer in words, the same ones in the terminal, in an answer of the server and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .causes import Cause, causes
from .figures import descent_efficiency, invisible_fraction, lost_fraction
from .totals import Totals
from .verdict import IdleReason, State, quiet_share
from .words import name_some, percent

MUCH = 0.1
"""Share of deferred updates, or of those that stochastic rounding leaves alone, from which it is said."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to tell the user: a state, one headline, and the numbers behind it in a sentence or two."""

    state: State | None
    headline: str
    explanation: str


NO_VERDICT = Verdict(None, "No verdict yet.", "The first samples after the warm-up decide.")

_IDLE: dict[IdleReason | None, str] = {
    "lr": "The learning rate is 0",
    "gradient": "No gradient arrives",
    "skipped": "A loss scaler skips the steps, whose gradients are not finite; nothing of them is lost",
    "updates": "The updates are below a thousandth of what they usually are here",
    None: "The learning rate or the gradients are zero or tiny",
}

_HOW: dict[Cause, str] = {
    "rounding": "{lose} most of {their} updates to rounding.",
    "underflow": "{lose} most of {their} updates below the range of the format.",
    "decay": "{lose} most of {their} weight decay to rounding, where no gradient arrives.",
    "second-moment": "{take} steps too small to store: {their} second moment is stuck too high.",
}

_WHY: dict[Cause, str] = {
    "rounding": "The intended updates are healthy, so precision is the cause, not the learning rate or the gradients.",
    "underflow": "They are smaller than the smallest number of the format: more words of it do not help, float32 does.",
    "decay": "The gradients are zero there; it is the decay that rounds away.",
    "second-moment": "The steps are far shorter than the learning rate, because the second moment does not decay.",
}


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
    *,
    hurt: Totals | None = None,
    reason: IdleReason | None = None,
    lr: float | None = None,
    remedy: str = "",
) -> Verdict:
    """The verdict on a run.

    `model` and `window` are of the whole model; `stalling` and `broken` name layers, worst first, out of
    `layers` watched ones; `since_step` is the step at which the stall was first seen, if known. `hurt` adds up the
    windows of layers that stall, `reason` says why the model is idle, `lr` is the learning rate now, and `remedy` a
    sentence with the cure: each only if known.
    """
    state = run_state(model, ["stalling"] * bool(stalling) + ["broken"] * bool(broken))  # type: ignore[arg-type]
    if state is None:
        return NO_VERDICT
    if state == "broken":
        where = f": {name_some(broken)}" if broken else ""
        return Verdict(
            state,
            f"Non-finite values in {len(broken) or 'some'} of {layers} layers.",
            f"NaN or infinity reached the weights or their updates{where}.{_how_many(window)} This is not a rounding "
            "problem.",
        )
    if state == "idle":
        return _idle(reason)
    if state == "healthy":
        return Verdict(state, "Precision is not hurting this run.", f"{_numbers(window)}.")
    whole = model == "stalling"
    concerned = window if whole else Totals() if hurt is None else hurt
    cause = causes(concerned, lr=lr).dominant or "rounding"
    text = _whole(window, cause) if whole else _layers(window, len(stalling))
    when = "" if since_step is None else f"Since step {since_step:,}: "
    named = f"Worst: {name_some(stalling)}." if stalling else ""
    return Verdict(
        state,
        _headline(cause, stalling, layers),
        _joined(when, text, _split(concerned, cause), named, remedy),
    )


def layer_verdict(
    state: State | None,
    window: Totals,
    *,
    strategy: str = "",
    lr: float | None = None,
    reason: IdleReason | None = None,
    median_norm: float | None = None,
    remedy: str = "",
) -> Verdict:
    """The verdict on one layer, from its own window; the rest as in `run_verdict`.

    `strategy` is what its weight is stored as, `median_norm` the median of its ‖u‖ since the warm-up.
    """
    if state is None:
        return NO_VERDICT
    if state == "broken":
        return Verdict(
            state,
            "Non-finite values.",
            f"NaN or infinity reached the weight or its updates.{_how_many(window)} This is not a rounding problem.",
        )
    if state == "idle":
        return _idle(reason, quiet_share(window, median_norm))
    if state == "healthy":
        return Verdict(
            state,
            "Precision is not hurting this layer.",
            _joined("", f"{_numbers(window)}.", *_alike(window, strategy)),
        )
    found = causes(window, strategy=strategy, lr=lr)
    cause = found.dominant or "rounding"
    how = _HOW[cause].format(lose="Loses", their="its", take="Takes")
    return Verdict(state, how, _joined("", _whole(window, cause), str(found), remedy))


def _headline(cause: Cause, stalling: Sequence[str], layers: int) -> str:
    one = len(stalling) == 1
    how = _HOW[cause].format(
        lose="loses" if one else "lose", their="its" if one else "their", take="takes" if one else "take"
    )
    if stalling:
        return f"{len(stalling)} of {layers} layers {how}"
    if cause == "second-moment":
        return f"The layers {how}"
    return "Most of the updates are lost to rounding." if cause == "rounding" else f"The layers {how}"


def _whole(window: Totals, cause: Cause) -> str:
    return (
        f"only {percent(descent_efficiency(window))} of the intended descent is stored, "
        f"{percent(lost_fraction(window))} of the element updates are lost. {_WHY[cause]}"
    )


def _layers(window: Totals, count: int) -> str:
    which = "this layer hardly moves" if count == 1 else "these layers hardly move"
    return (
        f"{which}, while the model as a whole still stores {percent(descent_efficiency(window))} of its descent; "
        "the loss need not show it."
    )


def _split(window: Totals, cause: Cause) -> str:
    """The shares of the causes where they say more than that all was rounded away."""
    found = causes(window)
    return str(found) if cause != "rounding" or found.underflow or found.v_high else ""


def _numbers(window: Totals) -> str:
    return (
        f"{percent(descent_efficiency(window))} of the intended descent is stored; {percent(lost_fraction(window))} "
        "of the element updates are lost"
    )


def _alike(window: Totals, strategy: str) -> list[str]:
    """What looks like a loss and is none."""
    lost, invisible = lost_fraction(window) or 0.0, invisible_fraction(window) or 0.0
    if strategy == "stochastic" and lost > MUCH:
        return [
            "Stochastic rounding leaves these where they are and moves the others further, so that it evens out."
        ]
    if invisible - lost > MUCH:
        return [
            f"{percent(invisible - lost)} are deferred: kept beside the word that the forward pass reads, which is "
            "normal."
        ]
    return []


def _how_many(window: Totals) -> str:
    if not window.nonfinite:
        return ""
    return (
        f" {window.nonfinite:,} of {window.numel:,} element updates in the last {window.samples} samples are."
    )


def _idle(reason: IdleReason | None, share: float | None = None) -> Verdict:
    why = _IDLE[reason]
    if reason == "updates" and share is not None:
        why = f"The updates are {share:.1g} of what they usually are here"
    return Verdict("idle", "Hardly any update is attempted.", f"{why}, so precision is not what stops it.")


def _joined(when: str, *sentences: str) -> str:
    text = when + " ".join(sentence for sentence in sentences if sentence)
    return text[:1].upper() + text[1:]
