"""The tables, one file per noun."""

from .alerts import AlertRow as AlertRow, Scope as Scope
from .attempts import Attempt as Attempt, Writer as Writer
from .base import Base as Base
from .batches import TakenBatch as TakenBatch
from .groups import GroupSample as GroupSample
from .headroom import HeadroomSample as HeadroomSample
from .layers import MODEL as MODEL, Declaration as Declaration, LayerRow as LayerRow
from .removals import Removal as Removal
from .rollups import Block as Block, BlockMark as BlockMark, Resolution as Resolution, Strip as Strip
from .runs import Run as Run
from .samples import LayerSample as LayerSample, ModelSample as ModelSample, SumColumns as SumColumns
from .scalars import ScalarName as ScalarName, ScalarValue as ScalarValue
from .tokens import TokenRow as TokenRow
