"""A trained model, opened by its run's folder or checkpoint: recipe, workload, weights and figures in one
value.

Used by evaluate, predict, serve and publish; needs no process group, whatever number of ranks wrote the
checkpoint.
Easy to get wrong: the recipe is the one that the checkpoint was written with, not what the file says today.
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
class Trained:
    """What a checkpoint holds that is of use after training.

    Attributes:
        recipe: as it was when the checkpoint was written.
        workload: with its data ready.
        model: in evaluation mode, on the device asked for.
        step: optimizer steps behind it.
        path: the checkpoint, a folder or a URL.
        metrics: the validation's figures of that step, such as `validation/loss`; empty where it had none.
    """

    recipe: Recipe
    workload: Workload
    model: torch.nn.Module
    step: int
    path: str
    metrics: dict[str, float]


def open_trained(source: str, which: str = "best", device: str = "cpu", cache: Path | None = None) -> Trained:
    """Open a checkpoint.

    Args:
        source: a run's folder or URL (then `which` says which checkpoint), or that of one checkpoint.
        which: `best` by the recipe's metric (the newest where none was measured), `newest`, or `step-N`.
        device: where the model goes.
        cache: where the workload's data lives; by default the user's cache folder.

    Raises:
        InputError: nothing there, no such checkpoint, or its workload's data is not what it was trained on.
        CheckpointError: it cannot be read.
    """
    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import make_workload

    root, name = _found(source, which)
    checkpoints = Checkpoints(open_store(root), _settings(root), lambda *_: None, reading=True)
    name = name or _chosen(checkpoints, which, source)
    shared = checkpoints.read(name)["shared"]
    recipe = Recipe.model_validate(shared["recipe"])
    workload = make_workload(recipe, cache or default_cache())
    _same_data(workload, shared, checkpoints.at(name))
    model = workload.build_model()
    checkpoints.load(name, {"model": model.state_dict()}, model)
    metrics = dict(checkpoints.notes().get(name, {}).get("metrics", {}))
    return Trained(
        recipe, workload, model.to(device).eval(), int(shared["step"]), checkpoints.at(name), metrics
    )


def _found(source: str, which: str) -> tuple[str, str | None]:
    """The folder or URL of the checkpoints, and the name of the one where `source` is itself a checkpoint."""
    place = source.removeprefix("file://").rstrip("/")
    above, _, name = place.rpartition("/")
    files = open_store(place).sizes()
    if MARKER in files:
        return (above or ".") if "/" in place else ".", name or place
    if not any(path.startswith("checkpoints/") for path in files):
        raise InputError(
            "no trained model there",
            [Problem(source, "holds no checkpoints", "name a run's folder or URL, such as runs/lm-small")],
        )
    if which.startswith("step-") and not which.removeprefix("step-").isdigit():
        raise InputError(
            "no such checkpoint", [Problem(which, "is no step", "best, newest, or step-N such as step-100")]
        )
    return f"{place}/checkpoints", None


def _settings(root: str) -> CheckpointConfig:
    """How the run judged its best: from its recipe.yaml, else by the validation loss."""
    import yaml

    above = root.rpartition("/")[0] or "."
    try:
        return CheckpointConfig.model_validate(yaml.safe_load(open_store(above).read("recipe.yaml"))["checkpoint"])
    except (StoreError, ValueError, KeyError, TypeError):
        return CheckpointConfig()


def _chosen(checkpoints: Checkpoints, which: str, source: str) -> str:
    names = list(checkpoints.notes())
    if not names:
        raise InputError(
            "no trained model there", [Problem(source, "has no whole checkpoint yet", "train it first")]
        )
    if which == "newest":
        return str(checkpoints.choose())
    if which == "best":
        return checkpoints.best() or names[-1]
    wanted = f"step-{int(which.removeprefix('step-')):08}" if which.startswith("step-") else which
    if wanted not in names:
        raise InputError(
            "no such checkpoint",
            [Problem(f"{source}: {which}", f"there are {', '.join(names)}", did_you_mean(wanted, names))],
        )
    return wanted


def _same_data(workload: Workload, shared: dict[str, Any], path: str) -> None:
    if workload.fingerprint() != shared["fingerprint"]:
        what = "was trained on other data (or other tokens) than its recipe finds here now, so its numbers would mean something else"
        raise InputError(
            "the data changed since the training",
            [Problem(path, what, "bring back the data that `workload.data` names")],
        )


def precision(recipe: Recipe, device: str) -> contextlib.AbstractContextManager[Any]:
    """Around a forward pass: the precision that the model was trained in."""
    import torch

    return (
        torch.autocast(device.partition(":")[0], torch.bfloat16)
        if recipe.precision == "bf16"
        else contextlib.nullcontext()
    )


def identity_of(checkpoint: str) -> str:
    """Identify a checkpoint by its marker, which lists its files with their checksums."""
    return hashlib.sha256(open_store(checkpoint).read(MARKER)).hexdigest()


def run_of(checkpoint: str) -> str:
    """The run's folder or URL that a checkpoint lies in; a checkpoint that was carried elsewhere is its own."""
    run, inside, _ = checkpoint.rpartition("/checkpoints/")
    return run if inside else checkpoint
