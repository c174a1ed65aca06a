"""Optimizers that keep what 16-bit storage would lose."""

from .adamw import CollageAdamW as CollageAdamW
from .precision import (
    full_precision_state_dict as full_precision_state_dict,
    to_low_precision as to_low_precision,
)
from .strategies import STRATEGIES as STRATEGIES, Strategy as Strategy
