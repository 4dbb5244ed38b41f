"""A model's own folder: `model.safetensors` and `config.json`, for models that are no class of transformers.

Used by `export` and `import_` of the workloads. Easy to get wrong: tied weights are one tensor, which
safetensors keeps once;
and a folder must say whose it is, so that a speech model is not taken for a picture's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainfleet.errors import InputError, Problem

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def write_model(folder: Path, kind: str, model: torch.nn.Module, config: Mapping[str, Any]) -> None:
    """Write weights and configuration; `kind` is the configuration's `model_type`.

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
        InputError: there is none, or it is another kind of model's.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "there is no model", [Problem(str(folder / CONFIG), str(error), "a folder that an export wrote")]
        ) from error
    if config.get("model_type") != kind:
        raise InputError(
            "another kind of model",
            [Problem(str(folder), f"holds a `{config.get('model_type')}`, not a `{kind}`")],
        )
    return dict(config)


def read_weights(folder: Path, model: torch.nn.Module) -> torch.nn.Module:
    """Give a model the weights that `write_model` wrote; returns it in evaluation mode.

    Raises:
        InputError: they are not there, are torn, or do not fit.
    """
    tools = _safetensors()
    try:
        missing, unexpected = tools.load_model(model, str(folder / WEIGHTS), strict=False)
    except (OSError, RuntimeError, _torn()) as error:
        raise InputError(
            "the weights cannot be read", [Problem(str(folder / WEIGHTS), str(error).splitlines()[0])]
        ) from error
    problems = [Problem(name, "is not in the file") for name in sorted(missing)] + [
        Problem(name, "is of another model") for name in unexpected
    ]
    if problems:
        raise InputError(
            "the weights are another model's", [Problem(str(folder / WEIGHTS), "does not fit"), *problems[:8]]
        )
    return model.eval()


def need_transformers(what: str) -> Any:
    """The package transformers, its progress bars switched off: they would stand in the log of every rank.

    Raises:
        InputError: it is not installed; `what` needs it.
    """
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "transformers is not installed", [Problem(what, "is read by it", "pip install trainfleet[hf]")]
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
            [Problem("export", "weights are written by it", "pip install trainfleet[hf]")],
        ) from error
    return safetensors.torch


def _torn() -> type[Exception]:
    from safetensors import SafetensorError

    error: type[Exception] = SafetensorError
    return error
