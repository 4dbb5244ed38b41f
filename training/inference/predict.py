"""`trainfleet predict`: batch inference over files of rows, in this process or with ray.data actors.

A block is a unit of `trainfleet.training.data.sources`. Finished blocks stay in OUT.partial, so that a
second start resumes; OUT appears when all are complete. Both modes give the same output.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainfleet.errors import InputError, Problem
from trainfleet.training.data.bad_rows import BadInput
from trainfleet.training.data.sources import Source, Unit, find_source, rows_of
from trainfleet.training.inference.prediction_files import (
    Block,
    complete,
    encoded,
    existing_output,
    locked_output,
    store_block,
)
from trainfleet.training.inference.predictor import Predictor, open_predictor
from trainfleet.training.workloads import Precision

MAX_IN_ERROR = 10
RAY_FROM_BYTES = 4 << 20
"""Input size from which Ray is started."""
AGAIN = "finished blocks are kept; run the same command again to resume"
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Request:
    """A prediction job.

    Attributes:
        source, which: the model, as `open_predictor` takes it.
        input: a folder, a file or a URL of parquet, JSON lines, text (a row per line), audio or images.
        output: a folder that does not exist yet.
        batch: rows per forward pass.
        workers: number of actors; 0 for this process; None for one per GPU or CPU, or 0 for small input.
        on_bad: whether unreadable rows fail the job or get an error as their answer.
        form: format of the output files.
        settings: for the workload's `predict`.
        block_kib: approximate input size per block.
        glob: selects files of a folder.
        precision: of the weights; see `open_predictor`.
        shard: divide the model between the workers, which then compute the same rows together.
    """

    source: str
    input: str
    output: str
    which: str = "best"
    batch: int = 16
    workers: int | None = None
    on_bad: Literal["refuse", "quarantine"] = "refuse"
    form: Literal["jsonl", "parquet"] = "jsonl"
    settings: Mapping[str, Any] = field(default_factory=dict)
    block_kib: int = 256
    glob: str = "**/*"
    precision: Precision | None = None
    shard: bool = False


def predict(request: Request, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Run a prediction job and return its manifest.

    Raises:
        InputError: no such model or input, an unreadable row (`on_bad`), or an output that exists.
        Interrupted: Ctrl-C; finished blocks are kept.
    """
    source = find_source(request.input, request.glob, unit_bytes=request.block_kib << 10)
    workers = _workers(request, source)
    if request.shard and workers < 2:
        what = "divides the model between workers, and there is one process"
        problem = Problem("--shard", what, "--workers 2 or more")
        raise InputError("the model cannot be sharded", [problem])
    if workers == 0:
        return work(
            {**asdict(request), "workers": 0}, lambda _, **event: progress(event["done"], event["total"])
        )
    from trainfleet.training.runtime import local_resources, subprocess_jobs

    if request.shard:
        sharded: dict[str, Any] = subprocess_jobs.run(
            "trainfleet.training.inference.predict_ranks:work",
            asdict(request),
            ranks=workers,
            threads=max(1, local_resources.cpus() // workers),
            hear=lambda event: progress(event["done"], event["total"]),
            again=AGAIN,
        )
        return sharded
    found: dict[str, Any] = subprocess_jobs.run(
        "trainfleet.training.inference.predict:work",
        {**asdict(request), "workers": workers},
        hear=lambda event: progress(event["done"], event["total"]),
        again=AGAIN,
    )
    return found


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """Run the job; with workers, in the process that drives Ray."""
    request = Request(**job)
    source = find_source(request.input, request.glob, unit_bytes=request.block_kib << 10)
    predictor = open_predictor(
        request.source,
        request.which,
        device(),
        precision=request.precision,
        load=not request.workers,  # actors load it
    )
    predictor.check(request.settings)  # defaults are not part of the plan: only what was asked for
    plan = plan_of(request, source, predictor)
    output = Path(request.output).absolute()
    partial = output.with_name(f"{output.name}.partial")
    if (finished := existing_output(output, plan)) is not None:
        return finished | {"already": True}
    with locked_output(partial, plan) as done:
        todo = [(number, unit) for number, unit in enumerate(source.units) if number not in done]
        send("progress", done=len(done), total=len(source.units))
        make = (
            _in_process(predictor, request, todo)
            if not request.workers
            else _by_ray(predictor, request, todo)
        )
        with contextlib.closing(make) as blocks:
            for block in blocks:
                if block.bad and request.on_bad == "refuse":
                    raise bad_rows_error(block.bad)
                done[block.number] = store_block(partial, block, request.form)
                send("progress", done=len(done), total=len(source.units))
        return complete(partial, output, plan, done)


def make_block(predictor: Predictor, number: int, unit: Unit, request: Request) -> Block:
    """Make one block. The same block has the same bytes in every process."""
    import torch

    # Seeded per block, so that the result does not depend on which process makes the block, or when
    digest = hashlib.sha256(f"{predictor.recipe.seed}:predict:{number}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7]))
    rows = list(rows_of_unit(unit))
    lines_by_place: dict[int, dict[str, Any]] = {
        place: {"name": row.where, "input": {}, "prediction": None, "error": row.what}
        for place, row in enumerate(rows)
        if isinstance(row, BadInput)
    }
    good = [(place, row) for place, row in enumerate(rows) if not isinstance(row, BadInput)]
    for start in range(0, len(good), request.batch):
        part = good[start : start + request.batch]
        found = predictor.answers([row for _, row in part], **request.settings)
        for (place, row), answer in zip(part, found, strict=True):
            shown = {
                key: _json_value(value) for key, value in row.items() if key != "name" and _is_echoed(value)
            }
            lines_by_place[place] = {"name": row["name"], "input": shown, "prediction": answer.prediction}
            if answer.prediction is None:
                lines_by_place[place]["error"] = answer.error
    lines = [lines_by_place[place] for place in range(len(rows))]
    bad = [BadInput(line["name"], line["error"]) for line in lines if "error" in line]
    return Block(number, encoded(lines, request.form), len(lines), bad)


class Actor:
    """A ray.data actor."""

    def __init__(self, source: str, request: Request) -> None:
        self.request = request
        self.predictor = open_predictor(source, "best", device(), precision=request.precision)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        block = make_block(self.predictor, int(row["number"]), pickle.loads(row["unit"]), self.request)
        return {"block": pickle.dumps(block)}


def device() -> str:
    """Device of a prediction process."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _in_process(
    predictor: Predictor, request: Request, todo: Sequence[tuple[int, Unit]]
) -> Generator[Block, None, None]:
    for number, unit in todo:
        yield make_block(predictor, number, unit, request)


def _by_ray(
    predictor: Predictor, request: Request, todo: Sequence[tuple[int, Unit]]
) -> Generator[Block, None, None]:
    if not todo:
        return
    import os

    from trainfleet.training.recipe.schema import ScalingConfig
    from trainfleet.training.runtime import local_resources
    from trainfleet.training.runtime.ray_cluster import connect

    gpu, workers = local_resources.gpus() > 0, min(request.workers or 1, len(todo))
    scaling = ScalingConfig(
        workers=workers + (0 if gpu else 1), use_gpu=gpu
    )  # one more CPU to read the blocks
    with connect(scaling, os.environ):
        import ray

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        items = [{"number": number, "unit": pickle.dumps(unit)} for number, unit in todo]
        data = ray.data.from_items(items, override_num_blocks=len(items)).map(
            Actor,  # type: ignore[arg-type]  # ray documents a class here, and types a function
            fn_constructor_args=(predictor.path, request),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if gpu else 0,
        )
        for row in data.iter_rows():
            yield pickle.loads(row["block"])


def _workers(request: Request, source: Source) -> int:
    if request.workers is not None:
        return request.workers
    if source.size < RAY_FROM_BYTES or len(source.units) < 2:
        return 0
    from trainfleet.training.runtime import local_resources

    return min(local_resources.gpus() or local_resources.cpus(), len(source.units))


def rows_of_unit(unit: Unit) -> Iterator[dict[str, Any] | BadInput]:
    """The rows of a unit; for text, each line that is not blank."""
    for row in rows_of(unit):
        if isinstance(row, BadInput) or "last" not in row:
            yield row
            continue
        for number, line in enumerate(row["text"].decode("utf-8", "replace").splitlines()):
            if line.strip():
                yield {"name": f"{row['name']}:{number + 1}", "text": line}


def plan_of(request: Request, source: Source, predictor: Predictor) -> dict[str, Any]:
    """What must be unchanged for finished blocks to be reused."""
    return {
        "format": 1,
        "model": predictor.path,
        "identity": predictor.identity,
        "step": predictor.step,
        "input": str(request.input),
        "input_key": source.key,
        "blocks": len(source.units),
        "batch": request.batch,
        "form": request.form,
        "settings": dict(request.settings),
        "precision": request.precision,
    }


def bad_rows_error(bad: Sequence[BadInput]) -> InputError:
    problems = [Problem(each.where, each.what) for each in bad[:MAX_IN_ERROR]]
    if len(bad) > MAX_IN_ERROR:
        problems.append(Problem("", f"and {len(bad) - MAX_IN_ERROR} more in this block"))
    problems.append(Problem("", "fix them", "or use --on-bad quarantine, which records the error of each"))
    return InputError("rows of the input cannot be read", problems)


def _is_echoed(value: Any) -> bool:
    """Whether a value of the input is copied to the output; audio and images are not."""
    return value is None or isinstance(value, str | int | float | bool)


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
