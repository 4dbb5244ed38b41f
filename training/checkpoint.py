"""Checkpoints: saved whole or not at all, the newest sound one found again, the last few and the best kept.

Used by the step loop; `training.storage` decides what whole means. Easy to get wrong: a checkpoint that cannot be read
is not the end, the one before it is used and the user told; and purging never takes the newest or the best.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainfleet.errors import Problem, TrainfleetError
from training.sections import Checkpoints as Settings
from training.storage import FolderStore, TornError

STATE_FILE = "state.pt"
FORMAT = 1
"""Of the state file: raise it when its meaning changes."""


class CheckpointError(TrainfleetError):
    """Raised when a checkpoint cannot be saved, or none of those there can be read; names the last good one."""


class Checkpoints:
    """The checkpoints of one run, below RUN/checkpoints. Saving, purging and choosing are rank 0's; reading is every rank's."""

    def __init__(self, run_dir: Path, settings: Settings, notify: Callable[[str, str], Any]) -> None:
        self.store = FolderStore(run_dir / "checkpoints")
        self.settings = settings
        self.notify = notify
        self._refused: set[str] = set()

    def choose(self) -> str | None:
        """The newest checkpoint that is what was written; None when there is none.

        Raises:
            CheckpointError: there are checkpoints and all are damaged: starting over would hide that.
        """
        self.store.discard_unfinished()
        problems = []
        for name in reversed(self.store.committed()):
            try:
                self.store.open(name)
            except TornError as error:
                self._refused.add(name)
                problems.append(Problem(str(self.store.root / name), str(error)))
                continue
            for problem in problems:
                self.notify("fallback", f"{problem} - going on from {name}")
            return name
        if problems:
            fix = f"move {self.store.root} away to start over"
            raise CheckpointError("no checkpoint of this run can be read", [*problems, Problem("", "all of them are damaged", fix)])
        return None

    def load(self, name: str) -> dict[str, Any]:
        """The state in a checkpoint that `choose` named, on the CPU."""
        try:
            state: dict[str, Any] = torch.load(self.store.root / name / STATE_FILE, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise CheckpointError("cannot read a checkpoint", [Problem(str(self.store.root / name), str(error).splitlines()[0])]) from error
        if state.get("format") != FORMAT:
            what = f"has format {state.get('format')}, this Trainfleet reads {FORMAT}"
            raise CheckpointError("cannot read a checkpoint", [Problem(str(self.store.root / name), what, "use the version that wrote it")])
        return state

    def save(self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float]) -> Path:
        """Save a state, then purge. `metrics` are this step's validation figures, if it had a validation.

        Raises:
            CheckpointError: it could not be written; what was there before still is.
        """
        name = step_name(step)
        last = self.last_good()
        try:
            folder = self.store.begin(name)
            torch.save({"format": FORMAT, **state}, folder / STATE_FILE)
            path = self.store.commit(name, {"step": step, "metrics": dict(metrics)})
        except (OSError, RuntimeError) as error:
            self._clean_up()
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            kept = Problem(
                "",
                f"the last good checkpoint is {last}" if last else "there is no checkpoint yet",
                "make room or rights, then run the same command again",
            )
            raise CheckpointError(f"cannot save the checkpoint of step {step}", [Problem(str(self.store.root), reason), kept]) from error
        self._refused.discard(name)
        self._purge()
        return path

    def last_good(self) -> Path | None:
        """The newest checkpoint not known to be damaged."""
        names = [name for name in self.store.committed() if name not in self._refused]
        return self.store.root / names[-1] if names else None

    def best(self) -> str | None:
        """The checkpoint with the best `metric` so far; the earlier one of equals."""
        sign = 1 if self.settings.mode == "min" else -1
        scored = [
            (sign * float(note["metrics"][self.settings.metric]), name)
            for name, note in self._sound()
            if self.settings.metric in note.get("metrics", {})
        ]
        return min(scored)[1] if scored else None

    def _sound(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, note) for name, note in self.store.committed().items() if name not in self._refused]

    def _purge(self) -> None:
        names = [name for name, _ in self._sound()]
        keep = set(names[-self.settings.keep_last :])
        best = self.best()
        if self.settings.keep_best and best:
            keep.add(best)
        for name in names:
            if name not in keep:
                self.store.withdraw(name)

    def _clean_up(self) -> None:
        """Remove the half-written folder; on a broken disk even that may fail, and the next start does it."""
        try:
            self.store.discard_unfinished()
        except OSError as error:
            self.notify("checkpoint", f"could not tidy {self.store.root}: {error}")


def step_name(step: int) -> str:
    """The folder's name of a step: `step-00000100`; names sort like steps."""
    return f"step-{step:08}"


def rng_state() -> dict[str, Any]:
    """This process's random generators: torch (CPU and its GPU), Python and NumPy, as plain values."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)),
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put back what `rng_state` took."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
