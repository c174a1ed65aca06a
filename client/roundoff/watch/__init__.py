"""Watch a training run: which layers lose their updates, whether precision is the cause."""

from roundoff.metrics import Sums as Sums

from .statistics import Meter as Meter, measure as measure, measure_moment as measure_moment
