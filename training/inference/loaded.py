"""Opens a trained model from a run or checkpoint: recipe, workload, weights and metrics in one value.

Needs no process group, whatever number of ranks wrote the checkpoint. The recipe is the one stored in the
checkpoint, not the current file.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runs.reader import MARKER
from trainfleet.training.stores import StoreError, open_store

if TYPE_CHECKING:
    import torch

    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.workloads import Workload


@dataclass(frozen=True)
class LoadedRun:
    """A checkpoint, loaded for use after training.

    Attributes:
        recipe: as stored in the checkpoint.
        workload: with its data prepared, unless it was loaded without.
        model: in evaluation mode, on the requested device, with the average of the weights if there is one.
        step: number of optimizer steps.
        path: folder or URL of the checkpoint.
        metrics: validation metrics of that step, such as `validation/loss`; may be empty.
    """

    recipe: Recipe
    workload: Workload
    model: torch.nn.Module
    step: int
    path: str
    metrics: dict[str, float]


def load_run(
    source: str,
    which: str = "best",
    device: str = "cpu",
    cache: Path | None = None,
    *,
    with_data: bool = True,
) -> LoadedRun:
    """Load a checkpoint.

    Args:
        source: folder or URL of a run (then `which` selects the checkpoint) or of a checkpoint.
        which: `best` by the recipe's metric (the newest if none was measured), `newest`, or `step-N`.
        device: device of the model.
        cache: folder of the workload's data; by default the user's cache folder.
        with_data: False if the data is not needed. It is prepared nevertheless if the checkpoint or the
            workload is of a version without `Workload.for_inference`.

    Raises:
        InputError: no run or no such checkpoint, or the data or the pretrained model differs from those of
            the training.
        CheckpointError: the checkpoint cannot be read.
    """
    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.trainer.frozen import KEY, frozen_names, require_source
    from trainfleet.training.workloads import ASSETS, inference_workload, make_workload

    root, name = _locate(source, which)
    checkpoints = Checkpoints(open_store(root), _settings(root), lambda *_: None, read_only=True)
    name = name or _select(checkpoints, which, source)
    shared = checkpoints.read(name)["shared"]
    recipe = Recipe.model_validate(shared["recipe"])
    found = None if with_data else inference_workload(recipe, shared.get(ASSETS))
    workload = found or make_workload(recipe, cache or default_cache())
    if found is None:
        _check_data(workload, shared, checkpoints.at(name))
    model = workload.build_model()
    weights, source = model.state_dict(), shared.get(KEY)
    if source is not None:
        require_source(source, workload.frozen_source(), checkpoints.at(name))
        left_out = frozen_names(model)
        weights = {key: value for key, value in weights.items() if key not in left_out}
    checkpoints.load(name, {"model": weights}, model)
    if recipe.ema.decay is not None:
        trained = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
        checkpoints.load(name, {"ema": trained})
    metrics = dict(checkpoints.notes().get(name, {}).get("metrics", {}))
    return LoadedRun(
        recipe, workload, model.to(device).eval(), int(shared["step"]), checkpoints.at(name), metrics
    )


def _locate(source: str, which: str) -> tuple[str, str | None]:
    """The folder or URL of the checkpoints, and the checkpoint's name if `source` is itself a checkpoint."""
    place = source.removeprefix("file://").rstrip("/")
    above, _, name = place.rpartition("/")
    files = open_store(place).sizes()
    if MARKER in files:
        return (above or ".") if "/" in place else ".", name or place
    if not any(path.startswith("checkpoints/") for path in files):
        raise InputError(
            "no trained model found",
            [Problem(source, "holds no checkpoints", "use a run's folder or URL, such as runs/lm-small")],
        )
    if which.startswith("step-") and not which.removeprefix("step-").isdigit():
        raise InputError(
            "no such checkpoint",
            [Problem(which, "is not a step", "use best, newest, or step-N such as step-100")],
        )
    return f"{place}/checkpoints", None


def _settings(root: str) -> CheckpointConfig:
    """The run's checkpoint settings from recipe.yaml, else the defaults."""
    import yaml

    above = root.rpartition("/")[0] or "."
    try:
        return CheckpointConfig.model_validate(
            yaml.safe_load(open_store(above).read("recipe.yaml"))["checkpoint"]
        )
    except (StoreError, ValueError, KeyError, TypeError):
        return CheckpointConfig()


def _select(checkpoints: Checkpoints, which: str, source: str) -> str:
    names = list(checkpoints.notes())
    if not names:
        raise InputError(
            "no trained model found", [Problem(source, "has no complete checkpoint yet", "train it first")]
        )
    if which == "newest":
        return str(checkpoints.choose())
    if which == "best":
        return checkpoints.best() or names[-1]
    requested = f"step-{int(which.removeprefix('step-')):08}" if which.startswith("step-") else which
    if requested not in names:
        raise InputError(
            "no such checkpoint",
            [Problem(f"{source}: {which}", f"there are {', '.join(names)}", did_you_mean(requested, names))],
        )
    return requested


def _check_data(workload: Workload, shared: dict[str, Any], path: str) -> None:
    if workload.fingerprint() != shared["fingerprint"]:
        what = "was trained on other data or tokens than its recipe finds here: metrics are not comparable"
        raise InputError(
            "the data changed since the training",
            [Problem(path, what, "restore the data that `workload.data` names")],
        )


def precision(recipe: Recipe, device: str) -> contextlib.AbstractContextManager[Any]:
    """Context manager for a forward pass in the precision of the training."""
    import torch

    return (
        torch.autocast(device.partition(":")[0], torch.bfloat16)
        if recipe.precision == "bf16"
        else contextlib.nullcontext()
    )


def identity_of(checkpoint: str) -> str:
    """SHA-256 of the checkpoint's marker, which lists its files with their checksums."""
    return hashlib.sha256(open_store(checkpoint).read(MARKER)).hexdigest()


def run_of(checkpoint: str) -> str:
    """The folder or URL of a checkpoint's run; the checkpoint itself if it was copied out of its run."""
    run, inside, _ = checkpoint.rpartition("/checkpoints/")
    return run if inside else checkpoint
