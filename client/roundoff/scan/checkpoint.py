"""What a user calls a checkpoint: one file, the index of several, or a folder of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .safetensors_file import read_safetensors
from .tensors import Checkpoint, CheckpointError
from .torch_file import read_torch

INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = ("model.safetensors", "pytorch_model.bin")
TORCH = (".pt", ".pth", ".bin", ".ckpt")


def open_checkpoint(path: Path) -> Checkpoint:
    """The tensors of a `.safetensors` or `torch.save` file, of a sharded index, or of a folder with one of these.

    Raises FileNotFoundError and CheckpointError, which say what was looked for.
    """
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    if path.name.endswith(".index.json"):
        return _index(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix in TORCH:
        return read_torch(path)
    raise CheckpointError(
        f"{path} is neither .safetensors nor {', '.join(TORCH)}, a *.index.json of shards or a folder of them"
    )


def _folder(path: Path) -> Checkpoint:
    for name in (*INDICES, *SINGLE):
        if (path / name).exists():
            return open_checkpoint(path / name)
    indices = sorted(path.glob("*.index.json"))
    shards = sorted(path.glob("*.safetensors"))
    if len(indices) == 1:
        return _index(indices[0])
    if len(shards) == 1:
        return read_safetensors(shards[0])
    if (path / ".metadata").exists():
        raise CheckpointError(
            f"{path} is a checkpoint of torch.distributed; convert it first: "
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} FILE.pt"
        )
    raise CheckpointError(f"{path} holds no {' or '.join((*INDICES, *SINGLE))}: name a file in it")


def _index(path: Path) -> Checkpoint:
    """All shards that an index names."""
    try:
        loaded: Any = json.loads(path.read_bytes())
        names: dict[str, str] = {str(k): str(v) for k, v in loaded["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is no index of shards: it has no weight_map") from None
    shards: dict[str, Checkpoint] = {}
    for file in sorted(set(names.values())):
        shard = path.parent / file
        if path.parent.resolve() not in shard.resolve().parents:
            raise CheckpointError(f"{path} names a shard outside of its folder: {file}")
        shards[file] = open_checkpoint(shard)
    missing = [
        name for name, file in names.items() if name not in {**shards[file].tensors, **shards[file].skipped}
    ]
    if missing:
        raise CheckpointError(f"{path} promises {missing[0]} in {names[missing[0]]}, which does not hold it")
    tensors = {name: t for shard in shards.values() for name, t in shard.tensors.items()}
    skipped = {name: why for shard in shards.values() for name, why in shard.skipped.items()}
    return Checkpoint(path, tensors, {}, skipped)
