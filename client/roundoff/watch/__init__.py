"""Watch a training run: which layers lose their updates, and whether precision is the cause.

The module is callable, so that `roundoff.watch(model, optimizer)` and `roundoff.watch.measure(…)` both work.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from roundoff.metrics import Sums as Sums

from .history import History as History
from .preflight_checks import Warned as Warned, preflight as preflight
from .statistics import Meter as Meter, measure as measure, measure_moment as measure_moment
from .watching import Watch as Watch, watch as watch


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
