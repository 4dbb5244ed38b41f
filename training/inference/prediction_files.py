"""The files of predictions: a line or row for each row of the input, the notes of finished blocks, and the
manifest of a complete output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.data.bad_rows import BadInput

MANIFEST, PLAN, BLOCKS = "_manifest.json", "plan.json", "blocks"
"""Readers of whole folders (pyarrow, Spark) skip names with a leading underscore."""
MAX_IN_MANIFEST = 100
"""Maximum number of bad rows named in the manifest, which counts all."""


def encoded(lines: Iterable[Mapping[str, Any]], form: str) -> bytes:
    """Rows of predictions as a file of this format: `jsonl` or `parquet`."""
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
    # strings, so that all blocks have one schema
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class Block:
    """A finished block: its file's bytes, number of rows, and bad rows."""

    number: int
    payload: bytes
    rows: int
    bad: list[BadInput]


def existing_output(output: Path, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of an existing output.

    Raises:
        InputError: the folder is not an output of this job.
    """
    if not output.exists():
        return None
    try:
        manifest = dict(json.loads((output / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise InputError(
            "the output folder already exists",
            [Problem(str(output), "exists and holds no predictions", "--output another folder")],
        ) from None
    check_same_plan(manifest.get("plan", {}), plan, output)
    return manifest


def check_same_plan(before: Mapping[str, Any], plan: Mapping[str, Any], folder: Path | str) -> None:
    """Require the same predictions as those that an output holds.

    Raises:
        InputError: it holds others.
    """
    titles = {"identity": "the model's weights", "input_key": "the input's files"}
    problems = [
        Problem(
            titles.get(key, key),
            f"was {before.get(key)}, is now {plan[key]}" if key not in titles else "changed since",
        )
        for key in plan
        if before.get(key) != plan[key]
    ]
    if problems:
        raise InputError(
            "the output holds other predictions",
            [*problems, Problem(str(folder), "holds them", "move it away, or --output another folder")],
        )


@contextlib.contextmanager
def locked_output(partial: Path, plan: Mapping[str, Any]) -> Iterator[dict[int, dict[str, Any]]]:
    """Lock the folder of unfinished work; yields the finished blocks."""
    from filelock import FileLock, Timeout

    try:
        (partial / BLOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(partial / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise InputError(
            "another process is writing this output",
            [Problem(str(partial), "is locked by another command", "wait for it")],
        ) from error
    except OSError as error:
        raise InputError(
            "cannot write the output",
            [Problem(str(partial), error.strerror or str(error), "--output another folder")],
        ) from error
    try:
        if (partial / PLAN).is_file():
            check_same_plan(json.loads((partial / PLAN).read_text(encoding="utf-8")), plan, partial)
        else:
            write_whole(partial / PLAN, json.dumps(plan, indent=1))
        done = {}
        for note in (partial / BLOCKS).glob("*.json"):
            done[int(note.stem)] = dict(json.loads(note.read_text(encoding="utf-8")))
        yield done
    finally:
        lock.release()


def store_block(partial: Path, block: Block, form: str) -> dict[str, Any]:
    """Write a block, then its note, which marks it as finished."""
    note = note_of(block, form)
    write_whole(partial / note["file"], block.payload)
    write_whole(partial / BLOCKS / f"{block.number}.json", json.dumps(note))
    return note


def note_of(block: Block, form: str) -> dict[str, Any]:
    """What marks a block as finished."""
    return {
        "file": f"part-{block.number:06}.{form}",
        "rows": block.rows,
        "sha256": hashlib.sha256(block.payload).hexdigest(),
        "bad": len(block.bad),
        "named": [asdict(each) for each in block.bad[:MAX_IN_MANIFEST]],
    }


def manifest_of(
    output: str, plan: Mapping[str, Any], done: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """The manifest of a complete output, from the notes of its blocks."""
    notes = [done[number] for number in sorted(done)]
    return {
        "output": output,
        "rows": sum(note["rows"] for note in notes),
        "bad": {
            "count": sum(note["bad"] for note in notes),
            "named": [each for note in notes for each in note["named"]][:MAX_IN_MANIFEST],
        },
        "files": [{key: note[key] for key in ("file", "rows", "sha256")} for note in notes],
        "plan": dict(plan),
    }


def complete(
    partial: Path, output: Path, plan: Mapping[str, Any], done: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Write the manifest and rename the folder to its final name."""
    manifest = manifest_of(str(output), plan, done)
    write_whole(partial / MANIFEST, json.dumps(manifest, indent=1))
    shutil.rmtree(partial / BLOCKS)
    (partial / PLAN).unlink()
    try:
        (partial / ".lock").unlink(missing_ok=True)
        partial.rename(output)
    except OSError as error:
        raise TrainfleetError(
            "cannot rename the output",
            [Problem(str(output), error.strerror or str(error), f"the complete output is in {partial}")],
        ) from error
    return manifest
