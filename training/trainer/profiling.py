"""Records steps with torch's profiler: a trace for Perfetto, and on GPUs the history of their memory.

A step that is not recorded costs nothing. A recording that does not reach its last step is discarded.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainfleet.errors import TrainfleetError
from trainfleet.training.recipe.schema_reports import Profile
from trainfleet.training.runs.schema import PROFILES
from trainfleet.training.stores import Store
from trainfleet.training.trainer.context import RunContext

MEMORY_EVENTS = 200_000
"""Allocations that a memory snapshot has at most; the latest ones."""


class StepProfiler:
    """Records the recipe's steps on this rank, if it is one of those that record."""

    def __init__(
        self,
        settings: Profile,
        context: RunContext,
        open_home: Callable[[], Store],
        notify: Callable[[str, str], Any],
    ) -> None:
        """Record nothing yet.

        Args:
            settings: which steps and ranks.
            context: this rank's.
            open_home: opens the run's folder or URL; called when there is something to write.
            notify: called on rank 0 with the kind of an event and a sentence about it.
        """
        first, last = settings.first_and_last() or (0, 0)
        self._first, self._last = (first, last) if context.rank in settings.ranks else (0, 0)
        self._context, self._open_home, self._notify = context, open_home, notify
        self._profiler: Any = None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """The context of a step, numbered from 1."""
        if number == self._first:
            self._begin()
        if self._profiler is None:
            yield
            return
        with torch.profiler.record_function(f"step {number}"):
            yield
        if number == self._last:
            self._end()

    def close(self) -> None:
        """Discard a recording that has not reached its last step."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            if self._on_gpu:
                torch.cuda.memory._record_memory_history(enabled=None)

    @property
    def _on_gpu(self) -> bool:
        return self._context.device.startswith("cuda")

    def _begin(self) -> None:
        self.close()  # a run that was rolled back records its steps again
        if self._on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=MEMORY_EVENTS)
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, kinds.CUDA] if self._on_gpu else [kinds.CPU]
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profiler.start()

    def _end(self) -> None:
        """Write what was recorded. A failure is reported, and the run continues."""
        name = f"rank-{self._context.rank}-steps-{self._first}-{self._last}"
        with self._context.lengthy(), tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, f"{name}.trace.json.gz")]
            if self._on_gpu:
                torch.cuda.synchronize(self._context.device)
                files.append(Path(folder, f"{name}.memory.pickle"))
                torch.cuda.memory._dump_snapshot(str(files[1]))  # type: ignore[no-untyped-call]  # torch is partly typed
            profiler = self._profiler
            self.close()
            try:
                profiler.export_chrome_trace(str(files[0]))
                home = self._open_home()
                for file in files:
                    home.put(PROFILES + file.name, file.read_bytes())
            except (TrainfleetError, OSError) as error:
                self._report("profile_failed", f"the profile is not written: {' '.join(str(error).split())}")
                return
        places = ", ".join(home.at(PROFILES + file.name) for file in files)
        self._report("profile", f"steps {self._first} to {self._last} are recorded in {places}")

    def _report(self, what: str, text: str) -> None:
        if self._context.rank == 0:
            self._notify(what, text)
        else:
            sys.stderr.write(f"rank {self._context.rank}: {text}\n")
