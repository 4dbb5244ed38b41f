"""Folders of exported models that are not transformers classes: `model.safetensors` and `config.json`.

`model_type` in config.json identifies the kind of model, so that a folder of another kind is rejected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads import Precision

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def write_model(folder: Path, kind: str, model: torch.nn.Module, config: Mapping[str, Any]) -> None:
    """Write weights and configuration; `kind` becomes `model_type`.

    Raises:
        InputError: safetensors is not installed.
    """
    save = _safetensors().save_model
    folder.mkdir(parents=True, exist_ok=True)
    save(model, str(folder / WEIGHTS), metadata={"format": "pt"})
    (folder / CONFIG).write_text(
        json.dumps({"model_type": kind, **config}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def read_config(folder: Path, kind: str) -> dict[str, Any]:
    """The configuration that `write_model` wrote.

    Raises:
        InputError: there is none, or it is of another kind of model.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "no exported model found",
            [Problem(str(folder / CONFIG), str(error), "use a folder of an export")],
        ) from error
    if config.get("model_type") != kind:
        raise InputError(
            "another kind of model",
            [Problem(str(folder), f"holds a `{config.get('model_type')}`, not a `{kind}`")],
        )
    return dict(config)


def read_weights(folder: Path, model: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """Give a model the weights that `write_model` wrote; returns it in evaluation mode.

    The tensors of the file become those of the model, so a model on the meta device needs no memory before.

    Args:
        folder: of an export.
        model: as it was written; may be on the meta device.
        dtype: converts the weights, one at a time; None leaves them.

    Raises:
        InputError: the weights are missing, damaged, or of another model.
    """
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(folder / WEIGHTS), framework="pt") as file:
            state = {name: _converted(file.get_tensor(name), dtype) for name in file.keys()}  # noqa: SIM118 - no mapping
            # safetensors writes tensors that share memory once, and the other names as metadata.
            shared = {name: kept for name, kept in (file.metadata() or {}).items() if kept in state}
        state |= {name: state[kept] for name, kept in shared.items()}
        missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise InputError(
            "the weights cannot be read", [Problem(str(folder / WEIGHTS), str(error).splitlines()[0])]
        ) from error
    problems = [Problem(name, "is not in the file") for name in sorted(missing)] + [
        Problem(name, "is not in the model") for name in unexpected
    ]
    if problems:
        raise InputError(
            "the weights are of another model",
            [Problem(str(folder / WEIGHTS), "does not match"), *problems[:8]],
        )
    return model.eval()


def _converted(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


def dtype_of(precision: Precision) -> torch.dtype:
    """The type of weights."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def source_digest(name: str) -> str | None:
    """SHA-256 of the files that a loaded model of transformers was read from: configuration and weights.

    Args:
        name: a folder, or a model of the hub in its cache.

    Returns:
        None if these files are not all of the model, such as for a folder with an adapter of another model.
    """
    tools = need_transformers(f"workload.model.pretrained {name}")
    try:
        config = tools.utils.cached_file(name, CONFIG, local_files_only=True)
    except OSError:
        return None
    if config is None or (folder := Path(config).parent).joinpath("adapter_config.json").exists():
        return None
    # As transformers chooses: safetensors if there are any.
    weights = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not weights:
        return None
    whole = hashlib.sha256()
    for path in (folder / CONFIG, *weights):
        with path.open("rb") as file:
            part = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name} {part}\n".encode())
    return whole.hexdigest()


def need_transformers(what: str) -> Any:
    """The package transformers, without progress bars, which would fill the log of every rank.

    Raises:
        InputError: it is not installed; `what` requires it.
    """
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "transformers is not installed",
            [Problem(what, "requires transformers", "pip install trainfleet[hf]")],
        ) from error
    tools: Any = transformers
    tools.utils.logging.disable_progress_bar()
    return tools


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise InputError(
            "safetensors is not installed",
            [Problem("export", "writing weights requires it", "pip install trainfleet[hf]")],
        ) from error
    return safetensors.torch
