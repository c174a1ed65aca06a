"""Rounding, error-free transforms and pairs: pure functions on tensors, no state (numerics §1–2)."""

from .formats import (
    FORMATS as FORMATS,
    Format as Format,
    format_of as format_of,
    gap as gap,
    narrow as narrow,
    round_to as round_to,
    ulp as ulp,
)
from .pairs import (
    LOWER_WORDS as LOWER_WORDS,
    add_compensated as add_compensated,
    add_to_expansion as add_to_expansion,
    add_to_pair as add_to_pair,
    grow as grow,
    join_master as join_master,
    join_words as join_words,
    multiply as multiply,
    split_master as split_master,
)
from .stochastic import (
    mix_key as mix_key,
    random_words as random_words,
    round_stochastic as round_stochastic,
)
from .transforms import (
    expand as expand,
    fast_two_sum as fast_two_sum,
    two_product as two_product,
    two_sum as two_sum,
)
