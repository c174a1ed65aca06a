"""The schema and codec that client and server share, version 1. No torch in here."""

from .answers import (
    Advised as Advised,
    Alert as Alert,
    AlertPage as AlertPage,
    AlertState as AlertState,
    Answer as Answer,
    BatchTaken as BatchTaken,
    Comparison as Comparison,
    Crossed as Crossed,
    Event as Event,
    Forecast as Forecast,
    HeadroomHistory as HeadroomHistory,
    Heatmap as Heatmap,
    LayerForecast as LayerForecast,
    LayerHealth as LayerHealth,
    Problem as Problem,
    RunImported as RunImported,
    RunPage as RunPage,
    RunStarted as RunStarted,
    RunSummary as RunSummary,
    Series as Series,
    StrategyOption as StrategyOption,
)
from .columns import Column as Column
from .ingest import (
    WIRE_VERSION as WIRE_VERSION,
    Batch as Batch,
    Finding as Finding,
    GroupSamples as GroupSamples,
    Headroom as Headroom,
    Layer as Layer,
    LayerSamples as LayerSamples,
    ModelSamples as ModelSamples,
    Placement as Placement,
    RunChange as RunChange,
    RunId as RunId,
    RunStart as RunStart,
    RunState as RunState,
    Scalars as Scalars,
)
from .tokens import (
    MadeToken as MadeToken,
    NewToken as NewToken,
    Token as Token,
    TokenScope as TokenScope,
)
