"""What a caller logs, as numbers: nested names flattened, device values copied to be read later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .records import Scalar
from .transfer import copied


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Names and values; a mapping inside becomes `outer/inner`."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}/")
        else:
            yield name, value


def number(value: Any) -> float | Scalar | None:
    """`value` as a float; a one-element tensor on a device as a copy that can be read later; else None."""
    if isinstance(value, float | int):
        try:
            return float(value)
        except OverflowError:
            return None
    if hasattr(value, "detach"):
        if value.numel() != 1 or value.is_complex():
            return None
        if value.device.type == "cpu":
            return float(value.item())
        return copied(value)
    if isinstance(value, str | bytes | complex) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - a stranger's __float__ may raise anything
        return None


def short(value: object) -> str:
    """`repr(value)` in at most 80 characters, for a warning."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a stranger's __repr__ may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:79]}…"
