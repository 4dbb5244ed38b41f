"""`trainfleet publish`: writes a checkpoint that passes the recipe's gates as a folder that other programs
load.

The folder is written under a temporary name and renamed. The export is loaded back and compared first.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training import evaluate
from trainfleet.training.inference.loaded import load_run, run_of
from trainfleet.training.publish.gates import GateError, GateResult
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_tuning import Gate
from trainfleet.training.stores import is_remote
from trainfleet.training.workloads import ASSETS, inference_workload, missing_hooks

if TYPE_CHECKING:
    import torch

    from trainfleet.training.evaluate import Evaluation
    from trainfleet.training.inference.loaded import LoadedRun
    from trainfleet.training.workloads import Workload

COMPARED_SAMPLES = 8
"""Number of samples compared between the exported and the trained model."""
LOSS_TOLERANCE = 1e-3
"""Relative tolerance of the losses if the weights are exported in another form (merged adapters)."""
Progress = Callable[[str, int, int], Any]


@dataclass(frozen=True)
class Published:
    """A published model and its gate results."""

    folder: Path
    checkpoint: str
    step: int
    gates: list[GateResult]
    metrics: dict[str, float]
    check: dict[str, Any]


def publish(
    source: str,
    target: Path | None = None,
    which: str = "best",
    *,
    recipe: Recipe | None = None,
    workers: int = 1,
    replace: bool = False,
    progress: Progress = lambda *_: None,
) -> Published:
    """Check a checkpoint against the recipe's gates and write it.

    Args:
        source: folder or URL of a run or checkpoint.
        target: a folder that does not exist yet; by default RUN/published.
        which: `best`, `newest` or `step-N`, if `source` is a run.
        recipe: use its gates instead of those of the run's recipe.
        workers: number of evaluating processes.
        replace: replace an earlier publication at `target`.
        progress: receives the task, the finished and the total count.

    Raises:
        GateError: names every failed gate; nothing is written.
        InputError: no gates, a workload without export, or a folder that cannot be written.
        TrainfleetError: the export, loaded back, differs from the model.
    """

    loaded = load_run(source, which)
    folder = _target(target, run_of(loaded.path), replace)
    rules = _gates(recipe or loaded.recipe, source)
    _can_export(loaded)
    splits = sorted(
        {name.partition("/")[0] for name in rules}
        | ({"test"} if (recipe or loaded.recipe).publish.require_test else set())
    )
    found = [_measured(loaded, split, workers, progress) for split in splits]
    metrics = {name: value for each in found for name, value in each.metrics.items()}
    gates = [GateResult(name, gate.min, gate.max, metrics.get(name)) for name, gate in rules.items()]
    _require_passed(gates, loaded)
    with _atomic_folder(folder) as work:
        check = export(loaded, work)
        describe(loaded, work, gates, found, check)
    return Published(folder, loaded.path, loaded.step, gates, metrics, check)


def export(loaded: LoadedRun, folder: Path) -> dict[str, Any]:
    """Write the model, load it back and compare; returns a summary of the comparison.

    Raises:
        TrainfleetError: weights or losses differ.
    """
    workload: Any = loaded.workload
    workload.export(loaded.model, folder)
    assets = write_assets(workload, folder)
    # As `predict` will load it, without the data if the workload can.
    user: Any = inference_workload(loaded.recipe, assets, folder) or workload
    back = user.import_(folder).eval()
    count, different = compare(loaded.model.state_dict(), back.state_dict())
    split = next((each for each in ("test", "validation", "train") if workload.size(each)), "test")
    samples = list(range(min(COMPARED_SAMPLES, workload.size(split))))
    losses = [_loss(loaded, model, split, samples) for model in (loaded.model, back)]
    same_form = different is not None
    if different or (
        losses[0] != losses[1] if same_form else not math.isclose(*losses, rel_tol=LOSS_TOLERANCE)
    ):
        problems = [Problem(name, "differs from the trained model") for name in (different or [])[:8]]
        problems.append(
            Problem(
                "loss", f"{losses[0]:.6g} before, {losses[1]:.6g} after, on the same {len(samples)} samples"
            )
        )
        raise TrainfleetError(
            "the exported model, loaded back, differs from the trained one; nothing was published", problems
        )
    return {
        "tensors": count,
        "weights": "equal" if same_form else "in another form",
        "samples": len(samples),
        "losses": losses,
    }


def write_assets(workload: Workload, folder: Path) -> dict[str, bytes]:
    """Write the workload's assets below `folder`, and return them.

    Raises:
        InputError: a name is not that of a file.
    """
    assets = dict(workload.assets())
    wrong = [name for name in assets if name in {"", ".", ".."} or Path(name).name != name]
    if wrong:
        problems = [Problem("assets", f"`{name}` is not a file name", "tokenizer.json") for name in wrong]
        raise InputError("the workload's assets cannot be written", problems)
    for name, content in assets.items():
        (folder / ASSETS).mkdir(exist_ok=True)
        (folder / ASSETS / name).write_bytes(content)
    return assets


def compare(
    wrote: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]
) -> tuple[int, list[str] | None]:
    """Number of compared tensors and names of those that are not equal; None if the names differ (merged
    adapters).
    """
    import torch

    if wrote.keys() != read.keys():
        return 0, None
    return len(wrote), [
        name for name, value in wrote.items() if not torch.equal(value.cpu(), read[name].cpu())
    ]


def describe(
    loaded: LoadedRun,
    folder: Path,
    gates: list[GateResult],
    found: list[Evaluation],
    check: Mapping[str, Any],
) -> None:
    """Write provenance.json, the data's manifest and the model card."""
    from trainfleet.training.publish.provenance import card, provenance

    document = provenance(
        loaded,
        [asdict(each) | {"passed": each.passed} for each in gates],
        [asdict(each) for each in found],
        check,
    )
    manifest = document["data"].pop("manifest_text", None)
    if manifest is not None:
        (folder / "data-manifest.json").write_text(manifest, encoding="utf-8")
    (folder / "provenance.json").write_text(
        json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8"
    )
    (folder / "README.md").write_text(
        card(loaded, document, gates, sorted(path.name for path in folder.iterdir())), encoding="utf-8"
    )


def _gates(recipe: Recipe, source: str) -> dict[str, Gate]:
    rules = dict(recipe.publish.gates)
    if not rules:
        fix = "add publish: {gates: {test/loss: {max: 2.0}}} to the recipe, or to one given by --recipe"
        raise InputError(
            "the recipe has no publication gates",
            [Problem(f"{source}: publish.gates", "is empty", fix)],
        )
    return rules


def _can_export(loaded: LoadedRun) -> None:
    missing = missing_hooks(loaded.workload, "export", "import_")
    if missing:
        what = f"has no {' and no '.join(f'`{name}`' for name in missing)}"
        raise InputError(
            "this workload's models cannot be exported",
            [Problem(loaded.recipe.workload.name, what, "see docs/add-a-workload.md")],
        )


def _measured(loaded: LoadedRun, split: str, workers: int, progress: Progress) -> Evaluation:
    """Metrics of a whole split; reuses a stored evaluation of the same checkpoint and data."""
    found = evaluate.stored(loaded.path, loaded.step, split)
    if found is not None and found.fingerprint == loaded.workload.fingerprint():
        return found
    return evaluate.evaluate(
        loaded.path,
        split,
        workers=workers,
        progress=lambda done, total: progress(f"evaluating on {split}", done, total),
    )


def _require_passed(gates: list[GateResult], loaded: LoadedRun) -> None:
    problems = [
        Problem(
            each.metric,
            f"is {each.value:.6g}, must be {each.requirement}"
            if each.value is not None
            else "was not measured",
        )
        for each in gates
        if not each.passed
    ]
    if problems:
        error = GateError(
            f"step {loaded.step} does not pass {len(problems)} of {len(gates)} gates; nothing was published",
            problems,
        )
        error.gates = gates
        raise error


def _loss(loaded: LoadedRun, model: torch.nn.Module, split: Any, samples: list[int]) -> float:
    import torch

    with torch.no_grad():
        outcome = loaded.workload.forward_loss(model, loaded.workload.batch(split, samples))
    return float(outcome.loss) / float(outcome.num_targets)


def _target(target: Path | None, run: str, replace: bool) -> Path:
    if target is None and is_remote(run):
        raise InputError(
            "no target folder",
            [Problem("--to", "the run is in an object store; a publication needs a folder", "--to FOLDER")],
        )
    folder = (target or Path(run.removeprefix("file://")) / "published").absolute()
    ours = (folder / "provenance.json").is_file()
    if folder.exists() and not (replace and ours) and (folder.is_file() or any(folder.iterdir())):
        what = "holds an earlier publication" if ours else "exists and is not a publication"
        raise InputError(
            "the target folder already exists",
            [Problem(str(folder), what, "--replace" if ours else "--to another FOLDER")],
        )
    return folder


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` on success and removed on failure."""
    work: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        work.chmod(0o755)
        yield work
        for path in work.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        if folder.exists():
            old = work.with_name(f"{work.name}.old")
            folder.rename(old)
            work.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            work.rename(folder)
    except OSError as error:
        raise InputError(
            "cannot write the publication",
            [Problem(str(folder), error.strerror or str(error), "--to another FOLDER")],
        ) from error
    finally:
        if work is not None and work.exists():
            shutil.rmtree(work, ignore_errors=True)
