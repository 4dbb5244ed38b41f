"""Reads the tensors of a checkpoint with torch's own reader, independent of the code under test."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint folder by name, such as `model.norm.weight`."""
    reader = FileSystemReader(folder)
    metadata = {
        name: each
        for name, each in reader.read_metadata().state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    found = {name: torch.zeros(each.size, dtype=each.properties.dtype) for name, each in metadata.items()}
    load(found, storage_reader=reader, no_dist=True)
    return found
