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


def read_weights(folder: Path, model: torch.nn.Module) -> torch.nn.Module:
    """Load weights that `write_model` wrote; returns the model in evaluation mode.

    Raises:
        InputError: the weights are missing, damaged, or of another model.
    """
    tools = _safetensors()
    try:
        missing, unexpected = tools.load_model(model, str(folder / WEIGHTS), strict=False)
    except (OSError, RuntimeError, _safetensor_error()) as error:
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


def _safetensor_error() -> type[Exception]:
    from safetensors import SafetensorError

    error: type[Exception] = SafetensorError
    return error
