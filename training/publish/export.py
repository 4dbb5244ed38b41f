"""`trainfleet publish`: a checkpoint that passes the recipe's gates, as a folder that another program can
load, with where it came from.

Used by the command line. Easy to get wrong: a folder is there whole or not at all, so it is made beside its
place and renamed; and
an export is worth nothing until it has been loaded back and gives the same answers.
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
from trainfleet.training.inference.loaded import open_trained, run_of
from trainfleet.training.publish.gates import GateError, Judged
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_tuning import Gate
from trainfleet.training.stores import is_remote

if TYPE_CHECKING:
    import torch

    from trainfleet.training.evaluate import Evaluation
    from trainfleet.training.inference.loaded import Trained

SAMPLES = 8
"""So many samples are put through the exported model and the trained one."""
NEAR = 1e-3
"""How far, as a share, the losses of a model whose weights are written in another form (merged adapters) may
lie apart.
"""
Progress = Callable[[str, int, int], Any]


@dataclass(frozen=True)
class Published:
    """What was written, and why it might be."""

    folder: Path
    checkpoint: str
    step: int
    gates: list[Judged]
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
    """Judge a checkpoint by the recipe's gates, and write it out.

    Args:
        source: a run's folder or URL, or one checkpoint's.
        target: a folder that is not there yet; by default RUN/published.
        which: `best`, `newest` or `step-N`, where `source` is a run.
        recipe: judge by this one's gates instead of those the run was started with.
        workers: processes that measure.
        replace: an older publication at `target` gives way.
        progress: told what is done, how far it is, and of how much.

    Raises:
        GateError: every gate that it fails; nothing is written.
        InputError: no gates, or a workload that cannot be exported, or a folder that cannot be written.
        TrainfleetError: the export, loaded back, is not the model.
    """

    trained = open_trained(source, which)
    folder = _target(target, run_of(trained.path), replace)
    rules = _gates(recipe or trained.recipe, source)
    _can_export(trained)
    splits = sorted(
        {name.partition("/")[0] for name in rules}
        | ({"test"} if (recipe or trained.recipe).publish.require_test else set())
    )
    found = [_measured(trained, split, workers, progress) for split in splits]
    metrics = {name: value for each in found for name, value in each.metrics.items()}
    gates = [Judged(name, gate.min, gate.max, metrics.get(name)) for name, gate in rules.items()]
    _judge(gates, trained)
    with _whole(folder) as work:
        check = export(trained, work)
        describe(trained, work, gates, found, check)
    return Published(folder, trained.path, trained.step, gates, metrics, check)


def export(trained: Trained, folder: Path) -> dict[str, Any]:
    """Write the model and load it back; returns what was compared.

    Raises:
        TrainfleetError: it came back with other weights, or gives other answers.
    """
    workload: Any = trained.workload
    workload.export(trained.model, folder)
    back = workload.import_(folder).eval()
    count, different = compare(trained.model.state_dict(), back.state_dict())
    split = next((each for each in ("test", "validation", "train") if workload.size(each)), "test")
    samples = list(range(min(SAMPLES, workload.size(split))))
    losses = [_loss(trained, model, split, samples) for model in (trained.model, back)]
    same_form = different is not None
    if different or (losses[0] != losses[1] if same_form else not math.isclose(*losses, rel_tol=NEAR)):
        problems = [Problem(name, "is not what was written") for name in (different or [])[:8]]
        problems.append(
            Problem(
                "loss", f"{losses[0]:.6g} before, {losses[1]:.6g} after, on the same {len(samples)} samples"
            )
        )
        raise TrainfleetError(
            "the exported model, loaded back, is not the trained one; nothing was published", problems
        )
    return {
        "tensors": count,
        "weights": "equal" if same_form else "in another form",
        "samples": len(samples),
        "losses": losses,
    }


def compare(
    wrote: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]
) -> tuple[int, list[str] | None]:
    """How many tensors were compared, and the names of those that differ in a bit; None where the names are
    others (merged adapters).
    """
    import torch

    if wrote.keys() != read.keys():
        return 0, None
    return len(wrote), [
        name for name, value in wrote.items() if not torch.equal(value.cpu(), read[name].cpu())
    ]


def describe(
    trained: Trained, folder: Path, gates: list[Judged], found: list[Evaluation], check: Mapping[str, Any]
) -> None:
    """Write provenance.json, the data's manifest and the model card."""
    from trainfleet.training.publish.provenance import card, provenance

    document = provenance(
        trained,
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
        card(trained, document, gates, sorted(path.name for path in folder.iterdir())), encoding="utf-8"
    )


def _gates(recipe: Recipe, source: str) -> dict[str, Gate]:
    rules = dict(recipe.publish.gates)
    if not rules:
        fix = "publish: {gates: {test/loss: {max: 2.0}}}, in the recipe, or in one given by --recipe"
        raise InputError(
            "the recipe has no gates, so nothing says when this model is good enough",
            [Problem(f"{source}: publish.gates", "is empty", fix)],
        )
    return rules


def _can_export(trained: Trained) -> None:
    missing = [name for name in ("export", "import_") if not hasattr(trained.workload, name)]
    if missing:
        what = f"has no {' and no '.join(f'`{name}`' for name in missing)}"
        raise InputError(
            "this workload's models cannot be exported",
            [Problem(trained.recipe.workload.name, what, "see docs/add-a-workload.md")],
        )


def _measured(trained: Trained, split: str, workers: int, progress: Progress) -> Evaluation:
    """The figures of a whole split: those kept, where they are of this very checkpoint."""
    found = evaluate.kept(trained.path, trained.step, split)
    if found is not None and found.fingerprint == trained.workload.fingerprint():
        return found
    return evaluate.evaluate(
        trained.path,
        split,
        workers=workers,
        progress=lambda done, total: progress(f"evaluating on {split}", done, total),
    )


def _judge(gates: list[Judged], trained: Trained) -> None:
    problems = [
        Problem(
            each.metric,
            f"is {each.value:.6g}, must be {each.wanted}" if each.value is not None else "was not measured",
        )
        for each in gates
        if not each.passed
    ]
    if problems:
        error = GateError(
            f"step {trained.step} does not pass {len(problems)} of {len(gates)} gates; nothing was published",
            problems,
        )
        error.gates = gates
        raise error


def _loss(trained: Trained, model: torch.nn.Module, split: Any, samples: list[int]) -> float:
    import torch

    with torch.no_grad():
        outcome = trained.workload.outcome(model, trained.workload.batch(split, samples))
    return float(outcome.loss) / outcome.weight


def _target(target: Path | None, run: str, replace: bool) -> Path:
    if target is None and is_remote(run):
        raise InputError(
            "where to?",
            [Problem("--to", "the run is kept in an object store, a publication is a folder", "--to FOLDER")],
        )
    folder = (target or Path(run.removeprefix("file://")) / "published").absolute()
    ours = (folder / "provenance.json").is_file()
    if folder.exists() and not (replace and ours) and (folder.is_file() or any(folder.iterdir())):
        what = "holds an earlier publication" if ours else "is there, and no publication"
        raise InputError(
            "the folder is taken",
            [Problem(str(folder), what, "--replace" if ours else "--to another FOLDER")],
        )
    return folder


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that becomes it if all goes well, and is gone if not."""
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
