"""roundoff: precision diagnostics for 16-bit training.

Names are imported when they are first used, so `import roundoff` is quick and needs no torch; reading what a
server holds (`Client`) never needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .frames import to_pandas as to_pandas, to_polars as to_polars
    from .optim import (
        CollageAdamW as CollageAdamW,
        full_precision_state_dict as full_precision_state_dict,
        to_low_precision as to_low_precision,
    )
    from .query import Client as Client
    from .run import Run as Run, init as init
    from .watch import watch as watch

__all__ = [
    "Client",
    "CollageAdamW",
    "Run",
    "__version__",
    "full_precision_state_dict",
    "init",
    "to_low_precision",
    "to_pandas",
    "to_polars",
    "watch",
]

_HOMES = {
    "Client": "roundoff.query",
    "CollageAdamW": "roundoff.optim",
    "Run": "roundoff.run",
    "full_precision_state_dict": "roundoff.optim",
    "init": "roundoff.run",
    "to_low_precision": "roundoff.optim",
    "to_pandas": "roundoff.frames",
    "to_polars": "roundoff.frames",
    "watch": "roundoff.watch",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'roundoff' has no attribute {name!r}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"roundoff.{name} needs PyTorch, which is not installed: pip install 'roundoff[torch]'",
            name="torch",
        ) from None
    # The package `roundoff.watch` is callable itself: once imported, it is what this name is bound to.
    return module if name == "watch" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
