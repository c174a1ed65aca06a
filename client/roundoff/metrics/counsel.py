"""The advice in words and as the rows of a table, the same in the terminal, in an answer and on a page."""

from __future__ import annotations

from .advice import TOLERABLE, Advice, Option
from .cures import BYTES_PER_PARAMETER
from .words import name_some, percent

HEADER = ("strategy", "bytes", "updates lost", "descent lost", "second moment")

ARRIVES = 0.9
"""From this efficiency on a cure changes the length of the steps too little to be said."""

CLOSE = 0.005
"""Two figures that differ by less are said as one."""


def counsel(advice: Advice) -> str:
    """What a colleague would say, and a table of all strategies."""
    return "\n\n".join([*paragraphs(advice), table(advice)])


def paragraphs(advice: Advice) -> list[str]:
    """What to store and why, what forces it, and what it does to the length of the steps."""
    said = [_recommendation(advice), _forced(advice), _noise(advice), str(advice.causes), warning(advice)]
    if advice.left_out:
        said.append(
            f"Not compared, because nothing of them rounds to 16 bit or was attempted: {name_some(advice.left_out)}."
        )
    return [one for one in said if one]


def rows(advice: Advice) -> list[tuple[str, ...]]:
    """One row per strategy under `HEADER`, as text."""
    return [
        (
            f"{one.strategy} (now)" if _in_use(advice, one) else one.strategy,
            f"{one.bytes}",
            _span(one.lost_fraction, one.lost_at_most),
            _span(one.lost_descent, one.descent_at_most),
            one.against,
        )
        for one in advice.options
    ]


def table(advice: Advice) -> str:
    """The rows under their header, in columns."""
    lines = [HEADER, *rows(advice)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n in (1, 2, 3) else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def headline(advice: Advice) -> str:
    """The recommendation in a line, for a verdict or an alert."""
    if advice.recommended is None:
        return "No strategy loses less than 1 % of every layer's descent."
    if not advice.changes:
        return f'strategy="{advice.recommended}" is the cheapest that loses less than 1 % of the descent.'
    one = advice.option(advice.recommended)
    return (
        f'Cheapest cure: CollageAdamW(…, strategy="{one.strategy}"), {one.bytes} bytes per parameter '
        f"{'like now' if one.bytes == advice.now else f'instead of {advice.now}'}."
    )


def warning(advice: Advice) -> str:
    """That steps grow once nothing is lost, and by how much; empty where next to nothing is lost or changes."""
    if not advice.changes or advice.efficiency is None or advice.efficiency >= ARRIVES:
        return ""
    set_lr = "the learning rate" if advice.lr is None else f"lr = {advice.lr:.2g}"
    if advice.rise is None:
        return (
            f"Careful with the learning rate: next to nothing has arrived (efficiency {advice.efficiency:.2g}), so "
            f"these weights have never taken steps of {set_lr}. Choose it as for a new training, from well below."
        )
    over = "in one sample" if advice.samples == 1 else f"over the last {advice.samples} samples"
    start = "the same fraction of it" if advice.effective_lr is None else f"lr ≈ {advice.effective_lr:.2g}"
    return (
        f"Careful with the learning rate: {over} the weights have been learning at "
        f"{advice.efficiency:.2g} of the set rate. Cured, {set_lr} takes steps {advice.rise:.2g} times larger along "
        f"the descent, and layers that stood still begin to move: start from {start} and raise it while the loss "
        "agrees."
    )


def _recommendation(advice: Advice) -> str:
    little = percent(TOLERABLE)
    if advice.recommended is None:
        bad = f", because of {name_some(advice.needing)}" if advice.needing else ""
        return f"No strategy loses less than {little} of every layer's descent{bad}."
    best = advice.option(advice.recommended)
    loses = f"it loses {_span(best.lost_descent, best.descent_at_most)} of the descent"
    if not advice.changes:
        return (
            f"Keep {best.strategy}: {loses}, and nothing cheaper loses less than {little} of every layer's."
        )
    now = next((one for one in advice.options if _in_use(advice, one)), None)
    instead = "as now" if best.bytes == advice.now else f"instead of {advice.now}"
    use = f'CollageAdamW(…, strategy="{best.strategy}"): {best.bytes} bytes per parameter {instead}, and {loses}'
    if now is None:
        return f"Use {use}."
    known = f"{now.strategy} loses {_span(now.lost_descent, now.descent_at_most)}"
    if now.holds and now.bytes > best.bytes:
        return f"Nothing has to change: {known} of the descent. The cheapest that would do is {use}."
    return f"Use {use} where {known}."


def _forced(advice: Advice) -> str:
    """Which layers need what is recommended, and why nothing cheaper does."""
    if advice.recommended is None or not advice.needing:
        return ""
    cheaper = [one for one in advice.options if one.bytes < advice.option(advice.recommended).bytes]
    why = list(dict.fromkeys(f"{one.strategy}: {one.against}" for one in cheaper if one.against))[:1]
    because = f" Nothing cheaper does: {why[0]}." if why else ""
    if len(advice.needing) == len(advice.layers):
        return (
            f"All {len(advice.layers)} layers need it.{because}"
            if len(advice.layers) > 1
            else because.strip()
        )
    rest = len(advice.layers) - len(advice.needing)
    others = "" if advice.least is None else f"; {advice.least} would do for the other {rest}"
    need = "needs" if len(advice.needing) == 1 else "need"
    return f"{name_some(advice.needing)} {need} it{others}.{because}"


def _noise(advice: Advice) -> str:
    if advice.recommended != "stochastic":
        return ""
    plain = advice.option("none")
    open_ended = plain.descent_at_most - plain.lost_descent >= CLOSE
    times = f"{'at least ' if open_ended else ''}{advice.option('stochastic').noise ** 0.5:.2g}"
    quiet = next(
        (one for one in advice.options if one.holds and one.strategy not in ("none", "stochastic")), None
    )
    without = "" if quiet is None else f" Without that noise: {quiet.strategy}, {quiet.bytes} bytes."
    return (
        "Stochastic rounding keeps the descent on average only: a single step carries noise "
        f"{times} times as long as the update itself.{without}"
    )


def _in_use(advice: Advice, option: Option) -> bool:
    plain = {one if one in BYTES_PER_PARAMETER else "none" for one in advice.used}
    return plain == {option.strategy}


def _span(low: float, high: float) -> str:
    return percent(low) if high - low < CLOSE else f"{percent(low)} to {percent(high)}"
