"""What is measured, every ratio derived from it, and the verdict. No torch in here."""

from .advice import Advice as Advice, Observed as Observed, Option as Option, advise as advise
from .causes import Cause as Cause, Causes as Causes, causes as causes
from .cures import (
    BYTES_PER_PARAMETER as BYTES_PER_PARAMETER,
    Cure as Cure,
    cure as cure,
)
from .figures import (
    METRICS as METRICS,
    Metric as Metric,
    decay_lost_fraction as decay_lost_fraction,
    descent_efficiency as descent_efficiency,
    edq as edq,
    effective_lr as effective_lr,
    expected_roundings as expected_roundings,
    imprecision as imprecision,
    invisible_fraction as invisible_fraction,
    lost_fraction as lost_fraction,
    seen_efficiency as seen_efficiency,
    update_norm as update_norm,
    update_ratio as update_ratio,
    v_stuck_fraction as v_stuck_fraction,
)
from .sentences import (
    Verdict as Verdict,
    layer_verdict as layer_verdict,
    run_state as run_state,
    run_verdict as run_verdict,
)
from .sums import (
    COUNTS as COUNTS,
    EVIDENCE as EVIDENCE,
    HEADROOM_BINS as HEADROOM_BINS,
    HEADROOM_HIGH as HEADROOM_HIGH,
    HEADROOM_LOW as HEADROOM_LOW,
    ROW as ROW,
    SUMS as SUMS,
    Sums as Sums,
)
from .totals import Totals as Totals
from .verdict import (
    STALL_EFFICIENCY as STALL_EFFICIENCY,
    STALL_EVIDENCE as STALL_EVIDENCE,
    STALL_LOST as STALL_LOST,
    WARMUP_STEPS as WARMUP_STEPS,
    IdleReason as IdleReason,
    State as State,
    Track as Track,
    idle_reason as idle_reason,
    judge as judge,
    may_alert as may_alert,
)
from .words import name_some as name_some, percent as percent
