"""`trainfleet evaluate --rows`: metrics of a model on rows of files, without the training data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.data.bad_rows import BadInput
from trainfleet.training.data.sources import Source, find_source
from trainfleet.training.inference.predict import device, rows_of_unit
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.workloads import missing_hooks

if TYPE_CHECKING:
    from trainfleet.training.workloads import Precision

UNIT_BYTES = 256 << 10


def evaluate_rows(
    source: str,
    rows: str,
    which: str = "best",
    *,
    precision: Precision | None = None,
    progress: Callable[[int, int], Any] = lambda *_: None,
) -> dict[str, Any]:
    """Metrics of a run, a checkpoint or a published model on all rows of the input, each once.

    Args:
        source, which, precision: the model, as `open_predictor` takes it.
        rows: parquet, JSON lines, text (a row per line), audio or images, with their targets.
        progress: receives the finished and the total number of blocks.

    Returns:
        `model`, `step`, `input`, `rows`, `metrics` (such as `loss`) and `precision`.

    Raises:
        InputError: no such model or input, its workload has no `read_samples`, or a row cannot be read.
    """
    import torch

    from trainfleet.training.inference.loaded import autocast
    from trainfleet.training.trainer.metrics import MetricsManager

    found = find_source(rows, unit_bytes=UNIT_BYTES)
    predictor = open_predictor(source, which, device(), precision=precision, load=False)
    workload, count = predictor.workload, 0
    if missing_hooks(workload, "read_samples"):
        what = "has no `read_samples`"
        problem = Problem(predictor.recipe.workload.name, what, "see docs/add-a-workload.md")
        raise InputError("this workload cannot be evaluated on rows", [problem])
    metrics = MetricsManager(workload.metrics, predictor.device, workload.collections("test"))
    with torch.no_grad(), autocast(predictor.recipe, predictor.device, precision):
        for part in _batches(found, predictor.recipe.batch.micro_batch, progress):
            count += len(part)
            for batch in workload.read_samples(part):
                inputs = {name: value.to(predictor.device) for name, value in batch.items()}
                metrics.update(workload.forward_loss(predictor.model, inputs))
    if not count:
        raise InputError("there is nothing to evaluate", [Problem(rows, "has no rows", "use another input")])
    return {
        "model": predictor.path,
        "step": predictor.step,
        "input": rows,
        "rows": count,
        "metrics": metrics.compute(),
        "precision": precision,
    }


def _batches(
    source: Source, size: int, progress: Callable[[int, int], Any]
) -> Iterator[list[dict[str, Any]]]:
    """All rows, up to `size` of a unit at a time."""
    for done, unit in enumerate(source.units, 1):
        rows = rows_of_unit(unit)
        while part := list(itertools.islice(rows, size)):
            bad = [Problem(each.where, each.what) for each in part if isinstance(each, BadInput)]
            if bad:
                raise InputError("rows of the input cannot be read", bad)
            yield [each for each in part if not isinstance(each, BadInput)]
        progress(done, len(source.units))
