"""Pretrained models of transformers: read as a whole, or built on the meta device and read tensor by tensor.

With `sharding.meta_init`, each block is sharded as soon as its weights are read, so that no rank holds the
whole model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.model_folder import WEIGHTS, need_transformers
from trainfleet.training.workloads.pretrained_folder import load_reports_hidden

INDEX = f"{WEIGHTS}.index.json"
Reads = Mapping[str, Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file; a call reads it."""

    path: Path
    key: str
    shape: tuple[int, ...]

    def __call__(self) -> torch.Tensor:
        from safetensors import safe_open

        with safe_open(str(self.path), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(self.key)
            return tensor


@dataclass(frozen=True)
class Loaded:
    """A pretrained model of transformers.

    Attributes:
        model: with its weights, or on the meta device.
        missing: names of weights that the files lack.
        mismatched: names of weights that have another shape in the files. Like those that are missing, they
            are initial values.
        reads: of a model on the meta device, how to read the other weights.
    """

    model: Any
    missing: frozenset[str]
    mismatched: frozenset[str]
    reads: Reads


class StoredWeights(nn.Module):
    """A module around a model of transformers, `inner`, that can be built on the meta device.

    Attributes:
        reads: `Loaded.reads` of that model, before adapters were added.
    """

    inner: Any
    reads: Reads

    def stored(self) -> Reads:
        """Read a parameter or buffer by its name. One without an entry keeps its initial value."""
        found: dict[str, Callable[[], torch.Tensor]] = {}
        for name, others in _names(self):
            keys = [key for each in others if (key := _name_in_files(each)) in self.reads]
            if keys:
                found[name] = self.reads[keys[0]]
        return found


def shape_of(kind: Any, name: str, dtype: torch.dtype, **config: Any) -> Any:
    """The model that `load` loads with these arguments, without the weights of its files."""
    tools = need_transformers(f"workload.model.pretrained {name}")
    return kind.from_config(tools.AutoConfig.from_pretrained(name, **config), dtype=dtype)


def load(kind: Any, name: str, dtype: torch.dtype, *, replace: bool = False, **config: Any) -> Loaded:
    """The model of this name in this type; if the default device is the meta device, without its weights.

    Args:
        kind: one of transformers' Auto classes.
        name: a folder, or a model of the hub.
        dtype: of its weights. transformers would keep that of the files, and train in it.
        replace: whether weights of another shape than in the files are allowed.
        config: values that replace those of its configuration.

    Raises:
        InputError: on the meta device, the files have no tensors to be read one by one.
        OSError: there is no such model, as ValueError and KeyError.
    """
    tools = need_transformers(f"workload.model.pretrained {name}")
    with load_reports_hidden(tools):
        if not torch.empty(0).is_meta:
            more = {**config, **({"ignore_mismatched_sizes": True} if replace else {})}
            model, read = kind.from_pretrained(name, dtype=dtype, output_loading_info=True, **more)
            reshaped = frozenset(each[0] for each in read["mismatched_keys"])
            return Loaded(model, frozenset(read["missing_keys"]), reshaped, {})
    model = shape_of(kind, name, dtype, **config)
    files = _renamed(model, weights_of(name))
    expected = {other: each for each, others in _names(model) for other in others}
    shapes = {each: tuple(tensor.shape) for each, tensor in model.state_dict().items()}
    fitting = {each: files[each] for each in expected if each in files and files[each].shape == shapes[each]}
    several = [each for each, others in _names(model) if sum(other in fitting for other in others) > 1]
    if several:
        what = (
            f"the files of `{name}` have several weights for {', '.join(several[:3])}, which the model shares"
        )
        raise not_stored(what)
    known = {expected[each] for each in fitting}
    other = frozenset(each for each in shapes if expected[each] not in known)
    for owner in {each.rpartition(".")[0] for each in other}:
        model._init_weights(
            model.get_submodule(owner)
        )  # as transformers does, which leaves it out on this device
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())  # as transformers makes those that it reads
    mismatched = frozenset(each for each in other if each in files)
    return Loaded(model, other - mismatched, mismatched, fitting)


def not_stored(what: str) -> InputError:
    """The error of a model whose tensors cannot be read one by one."""
    problem = Problem("sharding.meta_init workload.model.pretrained", what, "sharding.meta_init=false")
    return InputError("the model does not support meta_init", [problem])


def require_stored(name: str, missing: Iterable[str]) -> None:
    """Require that the files have these weights, of a model that is on the meta device.

    Raises:
        InputError: they lack some, or have another name for them that only transformers knows.
    """
    names = sorted(missing)
    if names and torch.empty(0).is_meta:
        what = f"the files of `{name}` lack {', '.join(names[:3])}, or have another name or shape for it"
        raise not_stored(what)


def weights_of(name: str) -> dict[str, StoredTensor]:
    """The tensors of a model by their names in its files.

    Args:
        name: a folder, or a model of the hub.

    Raises:
        InputError: the model has no files of safetensors.
    """
    from safetensors import safe_open

    found: dict[str, StoredTensor] = {}
    for path in _files(name):
        with safe_open(str(path), framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - no mapping
                found[key] = StoredTensor(path, key, tuple(file.get_slice(key).get_shape()))
    return found


def _renamed(model: Any, files: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors by their names in the model: transformers has renamed weights of many models since their
    files were written. Tensors that it would also convert, such as merge, are left out.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = get_model_conversion_mapping(model)
    renamings = [each for each in rules if isinstance(each, WeightRenaming)]
    converters = [each for each in rules if isinstance(each, WeightConverter)]
    expected, found = model.state_dict(), dict[str, StoredTensor]()
    for key, stored in files.items():
        name, converted = rename_source_key(key, renamings, converters, model.base_model_prefix, expected)
        if converted is None:
            found[name] = stored
    return found


def _names(module: nn.Module) -> Iterator[tuple[str, list[str]]]:
    """The first name of each tensor of a model's state, and all its names: shared tensors have several."""
    names: dict[int, list[str]] = {}
    state = module.state_dict(keep_vars=True)
    for kind in (module.named_parameters, module.named_buffers):
        for name, tensor in kind(remove_duplicate=False):
            if name in state:
                names.setdefault(id(tensor), []).append(name)
    return ((each[0], each) for each in names.values())


_ADAPTED = re.compile(r"\.base_layer\.")
"""Where peft keeps the layer that it adds adapters to."""


def _name_in_files(name: str) -> str:
    """The name of a tensor of `StoredWeights` in its model of transformers: without peft's parts."""
    return _ADAPTED.sub(".", name.removeprefix("inner.").removeprefix("base_model.model."))


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
    raise not_stored(f"`{name}` has no {WEIGHTS}, whose tensors are read one by one")
