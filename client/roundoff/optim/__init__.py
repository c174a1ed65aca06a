"""Optimizers that keep what 16-bit storage would lose."""

from .adamw import CollageAdamW as CollageAdamW
from .float8 import widened as widened
from .precision import (
    full_precision_state_dict as full_precision_state_dict,
    to_low_precision as to_low_precision,
)
from .strategies import EXPERIMENTAL as EXPERIMENTAL, STRATEGIES as STRATEGIES, Strategy as Strategy
