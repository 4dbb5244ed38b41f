"""Write metrics.jsonl, run.json and recipe.yaml of a run, and pass rows to trackers. Rank 0 only."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from trainfleet import __version__
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.recipe.load import dump
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import Meter
from trainfleet.training.runs.reader import read_rows, read_run
from trainfleet.training.runs.revision import revision
from trainfleet.training.runs.schema import LOG_KINDS, RunRecord, Start, Versions
from trainfleet.training.runtime import code_archive
from trainfleet.training.trackers import Notify, make_trackers


def _ignore(*_: Any) -> None:
    return None


class RunWriter:
    """The readable part of a run folder."""

    def __init__(
        self,
        run_dir: Path,
        recipe: Recipe,
        resumed_from: int,
        facts: Mapping[str, Any],
        notify: Notify = _ignore,
        *,
        meter: Meter,
    ) -> None:
        self.run_dir = run_dir
        self.path = run_dir / "metrics.jsonl"
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            write_whole(run_dir / "recipe.yaml", dump(recipe))
            # NOTE: a resumed run repeats the rows after its checkpoint, so these must go, or rows are
            # doubled.
            self._replace_rows(rows_until(run_dir, resumed_from))
        except OSError as error:
            fix = "choose another folder with --storage DIR"
            problem = Problem(str(run_dir), error.strerror or str(error), fix)
            raise InputError("cannot write the run folder", [problem]) from error
        self._trackers = make_trackers(recipe, run_dir, resumed_from, notify)
        start: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "from_step": resumed_from,
            **versions(),
            "revision": revision(),
        }
        if digest := code_archive.digest_of(code_archive.current()[0] or ""):
            start["code"] = digest
        self.record: RunRecord = read_run(run_dir)
        meter.before = before = self.record.get("starts", [])
        self.meter = meter
        starts = [*before, cast(Start, start)]
        self.update(name=recipe.name, status="running", starts=starts, **facts)

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Append a row, and pass it to the trackers."""
        with _explain_errors(self.path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        for tracker in self._trackers:
            tracker.write_row(row)

    def rewind(self, step: int) -> None:
        """Remove the metrics of steps after `step`, which the run rolled back; events and decisions stay."""
        with _explain_errors(self.path):
            self._file.close()
            rows = read_rows(self.run_dir).rows
            self._replace_rows([row for row in rows if row["step"] <= step or row.get("kind") in LOG_KINDS])

    def sync(self) -> None:
        """Flush all rows to the disk. NOTE: must precede a checkpoint, or a crash loses rows for good."""
        with _explain_errors(self.path):
            os.fsync(self._file.fileno())

    def record_time(self) -> None:
        """Write to run.json how long this start has held its machines."""
        *before, start = self.record["starts"]
        self.update(starts=[*before, {**start, **self.meter.start()}])

    def update(self, **facts: Any) -> None:
        """Change fields of run.json."""
        self.record |= cast(RunRecord, facts)
        write_whole(self.run_dir / "run.json", json.dumps(self.record, indent=1))

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            with contextlib.suppress(TrainfleetError):  # must not replace the error that ends the run
                self.record_time()
                self.update(status="failed", error=text)
        with contextlib.suppress(OSError):
            self._file.close()
        for tracker in self._trackers:
            tracker.close()

    def _replace_rows(self, rows: list[dict[str, Any]]) -> None:
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self._file = self.path.open("a", encoding="utf-8")


def rows_until(run_dir: Path, step: int) -> list[dict[str, Any]]:
    """The rows up to a step, without the test's row, which is written again when the run ends."""
    return [row for row in read_rows(run_dir).rows if row["step"] <= step and row.get("kind") != "test"]


def versions() -> Versions:
    """Versions for run.json and checkpoints."""
    return {
        "trainfleet": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": sys.platform,
    }


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "free disk space or grant access, then run the same command again to resume"
        problem = Problem(str(path), error.strerror or str(error), fix)
        raise TrainfleetError("cannot write the run's metrics", [problem]) from error
