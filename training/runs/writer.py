"""What a run leaves to be read: metrics.jsonl, run.json and recipe.yaml, and rows for other sinks. Written by
rank 0 alone.

Used by the step loop. Easy to get wrong: a resumed run must neither double nor lose a row, so rows after the
checkpoint's step are cut off, and rows reach the disk before the checkpoint that follows them.
"""

from __future__ import annotations  # noqa: I001

import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from trainfleet import __version__
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.recipe.load import dump
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.revision import revision
from trainfleet.training.runs.reader import read_run
from trainfleet.training.trackers import Notify, make_sinks

TOLD = ("event", "decision")
"""Kinds of rows that are no figures of a step."""


def _ignore(*_: Any) -> None:
    return None


class Journal:
    """The readable side of a run folder."""

    def __init__(
        self,
        run_dir: Path,
        recipe: Recipe,
        resumed_from: int,
        facts: Mapping[str, Any],
        notify: Notify = _ignore,
    ) -> None:
        self.run_dir = run_dir
        self.path = run_dir / "metrics.jsonl"
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            write_whole(run_dir / "recipe.yaml", dump(recipe))
            write_whole(
                self.path, "".join(json.dumps(row) + "\n" for row in kept_rows(self.path, resumed_from))
            )
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(
                "cannot write the run's folder",
                [Problem(str(run_dir), error.strerror or str(error), "choose another with --storage DIR")],
            ) from error
        self._sinks = make_sinks(recipe, run_dir, resumed_from, notify)
        start = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "from_step": resumed_from,
            **versions(),
            "revision": revision(),
        }
        self.record = read_run(run_dir)
        self.update(
            name=recipe.name, status="running", starts=[*self.record.get("starts", []), start], **facts
        )

    def row(self, row: Mapping[str, Any]) -> None:
        """Append a row, and hand it to the sinks."""
        with _explained(self.path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        for sink in self._sinks:
            sink.row(row)

    def rewind(self, step: int) -> None:
        """Take back the rows of steps after `step` that were trained on and given up; what happened stays
        told.
        """
        with _explained(self.path):
            self._file.close()
            rows = [row for row in read_rows(self.path) if row["step"] <= step or row["kind"] in TOLD]
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))
            self._file = self.path.open("a", encoding="utf-8")

    def sync(self) -> None:
        """Bring all rows to the disk: called before a checkpoint is written."""
        with _explained(self.path):
            os.fsync(self._file.fileno())

    def update(self, **facts: Any) -> None:
        """Change facts in run.json."""
        self.record |= facts
        write_whole(self.run_dir / "run.json", json.dumps(self.record, indent=1))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(
                TrainfleetError
            ):  # the error that ends the run is worth more than a full disk's
                self.update(
                    status="failed", error=str(error).splitlines()[0] if str(error) else type(error).__name__
                )
        with contextlib.suppress(OSError):
            self._file.close()
        for sink in self._sinks:
            sink.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line that a kill cut short is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(dict(json.loads(line)))
        except ValueError:
            continue
    return rows


def kept_rows(path: Path, step: int) -> list[dict[str, Any]]:
    """Rows up to a step; the test's row goes too, as it is written anew when the run ends."""
    return [row for row in read_rows(path) if row["step"] <= step and row["kind"] != "test"]


def versions() -> dict[str, str]:
    """What ran: for run.json and checkpoints."""
    return {
        "trainfleet": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": sys.platform,
    }


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "make room or rights, then run the same command again: it goes on from the newest checkpoint"
        raise TrainfleetError(
            "cannot write the run's metrics", [Problem(str(path), error.strerror or str(error), fix)]
        ) from error
