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
from trainfleet.training.inference.sharded import empty_sharded_model
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runs.reader import MARKER
from trainfleet.training.stores import StoreError, open_store

if TYPE_CHECKING:
    import torch

    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.workloads import Precision, Workload


@dataclass(frozen=True)
class LoadedRun:
    """A checkpoint, loaded for use after training.

    Attributes:
        recipe: as stored in the checkpoint.
        workload: with its data prepared, unless it was opened without.
        model: in evaluation mode, on the requested device, with the average of the weights if there is one.
        step: number of optimizer steps.
        path: folder or URL of the checkpoint.
        metrics: validation metrics of that step, such as `validation/loss`; may be empty.
        sharded: this rank has its share of the model, and all ranks must run the same number of forward
            passes.
    """

    recipe: Recipe
    workload: Workload
    model: torch.nn.Module
    step: int
    path: str
    metrics: dict[str, float]
    sharded: bool = False


@dataclass(frozen=True)
class OpenedRun:
    """A checkpoint whose weights are not loaded yet; see `LoadedRun`."""

    recipe: Recipe
    workload: Workload
    step: int
    path: str
    checkpoints: Checkpoints
    name: str
    frozen_source: str | None

    def load(
        self, device: str = "cpu", precision: Precision | None = None, *, sharded: bool = False
    ) -> LoadedRun:
        """Load the weights straight into the model on its device: the whole model is in memory once.

        Args:
            device: of the model.
            precision: of the weights; None: fp32, as in the training.
            sharded: load only this rank's share of each parameter. Collective then, as is each forward pass.

        Raises:
            InputError: the pretrained model differs from that of the training, or the workload's models do
                not have this precision.
            CheckpointError: the checkpoint cannot be read.
        """
        from trainfleet.training.trainer.frozen import frozen_names, require_source

        set_precision(self.workload, self.recipe, precision)
        if sharded:
            model = empty_sharded_model(self.workload, self.recipe, device)
        else:
            model = empty_model(self.workload, device)
        weights = model.state_dict()
        if self.frozen_source is not None:
            require_source(self.frozen_source, self.workload.frozen_source(), self.path)
            left_out = frozen_names(model)
            weights = {key: value for key, value in weights.items() if key not in left_out}
        self.checkpoints.load(self.name, {"model": weights}, model)
        if self.recipe.ema.decay is not None:
            trained = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
            self.checkpoints.load(self.name, {"ema": trained})
        metrics = dict(self.checkpoints.notes().get(self.name, {}).get("metrics", {}))
        return LoadedRun(self.recipe, self.workload, model.eval(), self.step, self.path, metrics, sharded)


def open_run(
    source: str, which: str = "best", cache: Path | None = None, *, with_data: bool = True
) -> OpenedRun:
    """Open a checkpoint without its weights.

    Args:
        source: folder or URL of a run (then `which` selects the checkpoint) or of a checkpoint.
        which: `best` by the recipe's metric (the newest if none was measured), `newest`, or `step-N`.
        cache: folder of the workload's data; by default the user's cache folder.
        with_data: False if the data is not needed. It is prepared nevertheless if the checkpoint or the
            workload is of a version without `Workload.for_inference`.

    Raises:
        InputError: no run or no such checkpoint, or the data differs from that of the training.
        CheckpointError: the checkpoint cannot be read.
    """
    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.trainer.frozen import KEY
    from trainfleet.training.workloads import ASSETS, inference_workload, make_workload

    root, name = _locate(source, which)
    checkpoints = Checkpoints(open_store(root), _settings(root), lambda *_: None, read_only=True)
    name = name or _select(checkpoints, which, source)
    shared = checkpoints.read(name)["shared"]
    recipe = Recipe.model_validate(shared["recipe"])
    found = None if with_data else inference_workload(recipe, shared.get(ASSETS))
    workload = found or make_workload(recipe, cache or default_cache())
    path = checkpoints.at(name)
    if found is None:
        _check_data(workload, shared, path)
    return OpenedRun(recipe, workload, int(shared["step"]), path, checkpoints, name, shared.get(KEY))


def stored_recipe(source: str, which: str = "best") -> tuple[Recipe, str]:
    """The recipe of a checkpoint, and the checkpoint's folder or URL; `source` and `which` as for `open_run`.

    Raises:
        InputError: no run or no such checkpoint.
        CheckpointError: the checkpoint cannot be read.
    """
    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.recipe.schema import Recipe

    root, name = _locate(source, which)
    checkpoints = Checkpoints(open_store(root), _settings(root), lambda *_: None, read_only=True)
    name = name or _select(checkpoints, which, source)
    return Recipe.model_validate(checkpoints.read(name)["shared"]["recipe"]), checkpoints.at(name)


def load_run(
    source: str,
    which: str = "best",
    device: str = "cpu",
    cache: Path | None = None,
    precision: Precision | None = None,
) -> LoadedRun:
    """Load a checkpoint with its data: `open_run`, then `OpenedRun.load`."""
    return open_run(source, which, cache).load(device, precision)


def set_precision(workload: Workload, recipe: Recipe, precision: Precision | None) -> None:
    """Set the type of the weights that a workload makes.

    Raises:
        InputError: its models do not have it.
    """
    if precision is not None and precision not in workload.precisions:
        what = f"{precision} is not supported by the workload `{recipe.workload.name}`"
        fix = f"use {' or '.join(workload.precisions)}, or see `precisions` in docs/add-a-workload.md"
        raise InputError("the model cannot have this precision", [Problem("--precision", what, fix)])
    workload.precision = precision or "fp32"


def empty_model(workload: Workload, device: str) -> torch.nn.Module:
    """The model on its device in the workload's precision; the weights are undefined or initial ones."""
    import torch

    dtype = torch.bfloat16 if workload.precision == "bf16" else None
    if not workload.on_meta:
        model = workload.build_model().to(dtype=dtype)
        require_fits(model, device)
        return model.to(device=device)
    with torch.device("meta"):
        model = workload.build_model()
    model = model.to(dtype=dtype)
    require_fits(model, device)
    return model.to_empty(device=device)


def require_fits(model: torch.nn.Module, device: str) -> None:
    """Require that a whole model fits the memory of one device.

    Raises:
        InputError: its weights alone do not.
    """
    needed = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
    if needed <= (have := memory_of(device)):
        return
    what = f"its weights take {needed / 2**30:.1f} GiB, and {device} has {have / 2**30:.1f} GiB"
    fix = "--precision bf16; predict --shard --workers N; evaluate --workers N; or serve --engine vllm"
    raise InputError("the model does not fit one device", [Problem("the whole model", what, fix)])


def memory_of(device: str) -> int:
    """The memory of a device in bytes, whether it is in use or not."""
    import torch

    if device.partition(":")[0] == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    import psutil

    return int(psutil.virtual_memory().total)


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


def autocast(
    recipe: Recipe, device: str, precision: Precision | None, *, sharded: bool = False
) -> contextlib.AbstractContextManager[Any]:
    """Context manager for a forward pass: in the precision of the training, or in that of the weights if it
    was asked for. `sharded`: keep no converted weights between passes, as they would be those of all ranks.
    """
    import torch

    if precision is None and recipe.precision == "bf16":
        return torch.autocast(device.partition(":")[0], torch.bfloat16, cache_enabled=not sharded)
    return contextlib.nullcontext()


def identity_of(checkpoint: str) -> str:
    """SHA-256 of the checkpoint's marker, which lists its files with their checksums."""
    return hashlib.sha256(open_store(checkpoint).read(MARKER)).hexdigest()


def run_of(checkpoint: str) -> str:
    """The folder or URL of a checkpoint's run; the checkpoint itself if it was copied out of its run."""
    run, inside, _ = checkpoint.rpartition("/checkpoints/")
    return run if inside else checkpoint
