"""Read checkpoints as files: what their words tell of a training run that nobody watched."""

from __future__ import annotations

from .checkpoint import open_checkpoint as open_checkpoint
from .findings import Finding as Finding
from .look import TensorFacts as TensorFacts
from .report import Scan as Scan, scan as scan
from .tensors import CheckpointError as CheckpointError, StoredTensor as StoredTensor
