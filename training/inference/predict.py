"""`trainfleet predict`: a model's answers to files of rows, block by block, in this process or by ray.data's
actors, with the same output.

Used by the command line. A block is a unit of `trainfleet.training.data.sources`; each finished one is kept
in OUT.partial, so that a second
start goes on, and OUT itself appears when all are there. Easy to get wrong: what a block holds must not
depend on who makes it
or when, so its generator starts from the recipe's seed and the block's number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import pickle
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.data.bad_rows import BadInput
from trainfleet.training.data.sources import Source, Unit, find_source, rows_of
from trainfleet.training.inference.predictor import Predictor, open_predictor

MANIFEST, PLAN, BLOCKS = "_manifest.json", "plan.json", "blocks"
"""What readers of whole folders (pyarrow, Spark) pass over begins with an underscore."""
NAMED = 100
"""BadInput rows that the manifest names; it counts all."""
SHOWN = 10
SMALL = 4 << 20
"""Bytes below which starting Ray takes longer than the work."""
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        source, which: the model, as `open_predictor` takes it.
        input: a folder, a file or a URL of parquet, JSON lines, text (a row per line), audio or images.
        output: a folder that is not there yet.
        batch: rows that go through the model at once.
        workers: actors; 0 for this process; None: as many as the machine has CPUs or GPUs for, 0 for little
        input.
        on_bad: what happens to rows that cannot be read: an end, or an answer that says why.
        form: of the output's files.
        settings: for the workload's `predict`.
        block_kib: about so much input per block.
        glob: which files of a folder.
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


@dataclass(frozen=True)
class Block:
    """A finished block: its file's bytes, how many rows, and which of them are bad."""

    number: int
    payload: bytes
    rows: int
    bad: list[BadInput]


def predict(request: Request, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Predict, and return the manifest.

    Raises:
        InputError: no such model or input, a row that cannot be read (`on_bad`), or an output that is taken.
        Interrupted: Ctrl-C; finished blocks are kept.
    """
    source = find_source(request.input, request.glob, unit_bytes=request.block_kib << 10)
    workers = _workers(request, source)
    if workers == 0:
        return work(
            {**asdict(request), "workers": 0}, lambda _, **event: progress(event["done"], event["total"])
        )
    from trainfleet.training.runtime import subprocess_jobs

    found: dict[str, Any] = subprocess_jobs.run(
        "trainfleet.training.inference.predict:work",
        {**asdict(request), "workers": workers},
        hear=lambda event: progress(event["done"], event["total"]),
        again="finished blocks are kept; run the same command again to go on",
    )
    return found


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """All of it, in the process that drives the others, if any."""
    request = Request(**job)
    source = find_source(request.input, request.glob, unit_bytes=request.block_kib << 10)
    predictor = open_predictor(request.source, request.which, device() if not request.workers else "cpu")
    predictor.check(request.settings)
    plan = _plan(request, source, predictor)
    output = Path(request.output).absolute()
    partial = output.with_name(f"{output.name}.partial")
    if (finished := _finished(output, plan)) is not None:
        return finished | {"already": True}
    with _held(partial, plan) as done:
        todo = [(number, unit) for number, unit in enumerate(source.units) if number not in done]
        send("progress", done=len(done), total=len(source.units))
        make = _here(predictor, request, todo) if not request.workers else _by_ray(predictor, request, todo)
        with contextlib.closing(make) as blocks:
            for block in blocks:
                if block.bad and request.on_bad == "refuse":
                    raise _refused(block.bad)
                done[block.number] = _keep(partial, block, request.form)
                send("progress", done=len(done), total=len(source.units))
        return _complete(partial, output, plan, done)


def make_block(predictor: Predictor, number: int, unit: Unit, request: Request) -> Block:
    """One block: the same bytes whoever makes it."""
    import torch

    digest = hashlib.sha256(f"{predictor.recipe.seed}:predict:{number}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7]))
    rows = list(_rows(unit))
    held: dict[int, dict[str, Any]] = {
        place: {"name": row.where, "input": {}, "prediction": None, "error": row.what}
        for place, row in enumerate(rows)
        if isinstance(row, BadInput)
    }
    good = [(place, row) for place, row in enumerate(rows) if not isinstance(row, BadInput)]
    for start in range(0, len(good), request.batch):
        part = good[start : start + request.batch]
        found = predictor.answers([row for _, row in part], **request.settings)
        for (place, row), answer in zip(part, found, strict=True):
            shown = {key: _plain(value) for key, value in row.items() if key != "name" and _shown(value)}
            held[place] = {"name": row["name"], "input": shown, "prediction": answer.prediction}
            if answer.prediction is None:
                held[place]["error"] = answer.error
    lines = [held[place] for place in range(len(rows))]
    bad = [BadInput(line["name"], line["error"]) for line in lines if "error" in line]
    return Block(number, _encoded(lines, request.form), len(lines), bad)


class Actor:
    """What ray.data starts several of."""

    def __init__(self, source: str, request: Request) -> None:
        self.predictor, self.request = open_predictor(source, "best", device()), request

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        block = make_block(self.predictor, int(row["number"]), pickle.loads(row["unit"]), self.request)
        return {"block": pickle.dumps(block)}


def device() -> str:
    """Where a process of its own computes."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _here(
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
    with connect(
        ScalingConfig(workers=workers + (0 if gpu else 1), use_gpu=gpu), os.environ
    ):  # one CPU more: for reading the list of blocks
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
    if source.size < SMALL or len(source.units) < 2:
        return 0
    from trainfleet.training.runtime import local_resources

    return min(local_resources.gpus() or local_resources.cpus(), len(source.units))


def _rows(unit: Unit) -> Iterator[dict[str, Any] | BadInput]:
    """The rows of a unit; of text each line that is not blank."""
    for row in rows_of(unit):
        if isinstance(row, BadInput) or "last" not in row:
            yield row
            continue
        for number, line in enumerate(row["text"].decode("utf-8", "replace").splitlines()):
            if line.strip():
                yield {"name": f"{row['name']}:{number + 1}", "text": line}


def _plan(request: Request, source: Source, predictor: Predictor) -> dict[str, Any]:
    """What must be the same for finished blocks to be of use."""
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
    }


def _finished(output: Path, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of an output that is there already.

    Raises:
        InputError: it is something else.
    """
    if not output.exists():
        return None
    try:
        manifest = dict(json.loads((output / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise InputError(
            "the output is taken",
            [Problem(str(output), "is there, and no predictions", "--output another folder")],
        ) from None
    _same(manifest.get("plan", {}), plan, output)
    return manifest


def _same(before: Mapping[str, Any], plan: Mapping[str, Any], folder: Path) -> None:
    said = {"identity": "the model's weights", "input_key": "the input's files"}
    problems = [
        Problem(
            said.get(key, key),
            f"was {before.get(key)}, is now {plan[key]}" if key not in said else "changed since",
        )
        for key in plan
        if before.get(key) != plan[key]
    ]
    if problems:
        raise InputError(
            "other predictions are there",
            [*problems, Problem(str(folder), "holds them", "move it away, or --output another folder")],
        )


@contextlib.contextmanager
def _held(partial: Path, plan: Mapping[str, Any]) -> Iterator[dict[int, dict[str, Any]]]:
    """The folder of unfinished work, held against others; gives the blocks that are there."""
    from filelock import FileLock, Timeout

    try:
        (partial / BLOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(partial / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise InputError(
            "this output is being written already",
            [Problem(str(partial), "another command holds it", "wait for it")],
        ) from error
    except OSError as error:
        raise InputError(
            "cannot write the output",
            [Problem(str(partial), error.strerror or str(error), "--output another folder")],
        ) from error
    try:
        if (partial / PLAN).is_file():
            _same(json.loads((partial / PLAN).read_text(encoding="utf-8")), plan, partial)
        else:
            write_whole(partial / PLAN, json.dumps(plan, indent=1))
        done = {}
        for note in (partial / BLOCKS).glob("*.json"):
            done[int(note.stem)] = dict(json.loads(note.read_text(encoding="utf-8")))
        yield done
    finally:
        lock.release()


def _keep(partial: Path, block: Block, form: str) -> dict[str, Any]:
    """Write a block, then its note, by which it counts as finished."""
    name = f"part-{block.number:06}.{form}"
    write_whole(partial / name, block.payload)
    note = {
        "file": name,
        "rows": block.rows,
        "sha256": hashlib.sha256(block.payload).hexdigest(),
        "bad": len(block.bad),
        "named": [asdict(each) for each in block.bad[:NAMED]],
    }
    write_whole(partial / BLOCKS / f"{block.number}.json", json.dumps(note))
    return note


def _complete(
    partial: Path, output: Path, plan: Mapping[str, Any], done: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Write the manifest and give the folder its name."""
    notes = [done[number] for number in sorted(done)]
    manifest = {
        "output": str(output),
        "rows": sum(note["rows"] for note in notes),
        "bad": {
            "count": sum(note["bad"] for note in notes),
            "named": [each for note in notes for each in note["named"]][:NAMED],
        },
        "files": [{key: note[key] for key in ("file", "rows", "sha256")} for note in notes],
        "plan": dict(plan),
    }
    write_whole(partial / MANIFEST, json.dumps(manifest, indent=1))
    shutil.rmtree(partial / BLOCKS)
    (partial / PLAN).unlink()
    try:
        (partial / ".lock").unlink(missing_ok=True)
        partial.rename(output)
    except OSError as error:
        raise TrainfleetError(
            "cannot give the output its name",
            [Problem(str(output), error.strerror or str(error), f"it is whole in {partial}")],
        ) from error
    return manifest


def _refused(bad: Sequence[BadInput]) -> InputError:
    problems = [Problem(each.where, each.what) for each in bad[:SHOWN]]
    if len(bad) > SHOWN:
        problems.append(Problem("", f"and {len(bad) - SHOWN} more in this block"))
    problems.append(
        Problem(
            "", "mend them", "or --on-bad quarantine: they are answered with the reason, counted and named"
        )
    )
    return InputError("rows of the input cannot be read", problems)


def _encoded(lines: Iterable[Mapping[str, Any]], form: str) -> bytes:
    if form == "jsonl":
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    import pyarrow as pa
    from pyarrow import parquet

    def text(value: Any) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False)

    columns = {
        "name": [line["name"] for line in lines],
        "input": [text(line["input"]) for line in lines],
        "prediction": [text(line["prediction"]) for line in lines],
        "error": [line.get("error") for line in lines],
    }
    table = pa.table(
        {name: pa.array(values, pa.string()) for name, values in columns.items()}
    )  # text: blocks of one schema whatever they hold
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _shown(value: Any) -> bool:
    """Whether a value of the input is repeated beside its prediction: sound and pictures are not."""
    return value is None or isinstance(value, str | int | float | bool)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
