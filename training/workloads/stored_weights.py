"""Weights that are read from files of safetensors, one tensor at a time.

With `sharding.meta_init`, each block is sharded as soon as its weights are read, so that no rank holds the
whole model.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.model_folder import WEIGHTS, need_transformers

INDEX = f"{WEIGHTS}.index.json"
Reads = Mapping[str, Callable[[], torch.Tensor]]


class StoredWeights(nn.Module):
    """A model that can be built on the meta device, and whose weights are then read from files."""

    @abstractmethod
    def stored(self) -> Reads:
        """Read a parameter by its name. A parameter without an entry keeps its initial value.

        Raises:
            InputError: there are no such files, or they lack a weight.
        """


def weights_of(name: str) -> Reads:
    """Read a weight of a model by its name in the files.

    Args:
        name: a folder, or a model of the hub.

    Raises:
        InputError: the model has no files of safetensors.
    """
    from safetensors import safe_open

    def read(path: Path, key: str) -> torch.Tensor:
        with safe_open(str(path), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(key)
            return tensor

    found: dict[str, Callable[[], torch.Tensor]] = {}
    for path in _files(name):
        with safe_open(str(path), framework="pt") as file:
            found |= {key: partial(read, path, key) for key in file.keys()}  # noqa: SIM118 - no mapping
    return found


def _files(name: str) -> list[Path]:
    tools = need_transformers(f"workload.model.pretrained {name}")

    def cached(file: str) -> str | None:
        found: str | None = tools.utils.cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        return found

    if whole := cached(WEIGHTS):
        return [Path(whole)]
    if index := cached(INDEX):
        parts = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
        return [Path(path) for part in sorted(parts) if (path := cached(part))]
    what = f"`{name}` has no {WEIGHTS}, whose tensors are read one by one"
    problem = Problem("sharding.meta_init workload.model.pretrained", what, "sharding.meta_init=false")
    raise InputError("the model does not support meta_init", [problem])
