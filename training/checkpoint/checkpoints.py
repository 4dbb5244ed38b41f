"""Checkpoints: copied aside in a moment, written and uploaded behind the step loop, there whole or not at
all.

Used by the step loop; `trainfleet.training.checkpoint.files` knows the format,
`trainfleet.training.checkpoint.plan` who writes what. Every method is
called on every rank. Easy to get wrong: the writing thread has a process group of its own, and must never
raise past the
others; its outcome is the same on all ranks, and `poll` hands it over at the same step on all of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.checkpoint.files import (
    Reader,
    SafePlanner,
    Share,
    TornError,
    commit,
    committed,
    discard_unfinished,
    read_marker,
    read_metadata,
    read_plain,
    verify,
    withdraw,
    write_share,
)
from trainfleet.training.checkpoint.plan import Staged, Staging, require_fit
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runtime import failpoints
from trainfleet.training.runtime.collectives import Ranks, portable, revived
from trainfleet.training.stores import Store, StoreError

Notify = Callable[[str, str], Any]
ABANDON_S = 120.0
"""How long a failed run waits for a save that is under way."""


class CheckpointError(TrainfleetError):
    """Raised when a checkpoint cannot be saved, or none of those there can be read; names the last good one."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is whole: its step, its folder or URL, the seconds that writing took and how many
    bytes this rank wrote.
    """

    step: int
    path: str
    seconds: float
    written: int


@dataclass
class _Save:
    """A save under way; `thread` ends when every rank knows how it went."""

    step: int
    began: float
    thread: threading.Thread | None = None
    saved: Saved | None = None
    error: TrainfleetError | None = None


class Checkpoints:
    """The checkpoints in one store. With `reading`, nothing there is ever changed."""

    def __init__(
        self,
        store: Store,
        settings: CheckpointConfig,
        notify: Notify,
        *,
        reading: bool = False,
        beside: Callable[[], Any] = lambda: None,
    ) -> None:
        """`beside` is called on rank 0, behind the loop, before a checkpoint becomes visible: it uploads what
        belongs to it.
        """
        self.store, self.settings, self.notify, self.reading, self.beside = (
            store,
            settings,
            notify,
            reading,
            beside,
        )
        self._front = Ranks()  # for the step loop's thread
        self._behind = Ranks()  # for the thread that writes
        self._staging = Staging(self._front)
        self._running: _Save | None = None
        self._refused: set[str] = set()
        self._notes: dict[str, dict[str, Any]] | None = None

    def choose(self) -> str | None:
        """The newest checkpoint that is what was written; None when there is none. What a killed process left
        is cleared away.

        Raises:
            CheckpointError: there are checkpoints and all are damaged: starting over would hide that.
            StoreError: the store does not answer.
        """
        names = self._front.on_first(self._tidied)
        problems: list[Problem] = []
        for name in reversed(names):
            trouble = self._damage(name)
            if trouble is None:
                for problem in problems:
                    self.notify("fallback", f"{problem} - going on from {name}")
                return str(name)
            self._refused.add(name)
            problems.append(Problem(self.at(name), trouble))
        if problems:
            fix = f"move {self.store.url} away to start over"
            raise CheckpointError(
                "no checkpoint of this run can be read",
                [*problems, Problem("", "all of them are damaged", fix)],
            )
        return None

    def read(self, name: str) -> dict[str, Any]:
        """A checkpoint's plain values: `shared` by name, `ranks` a list with each writing rank's own.

        Raises:
            CheckpointError: it cannot be read.
        """
        plain: dict[str, Any] = self._reading(name, lambda: read_plain(self.store, name))
        return plain

    def load(self, name: str, into: Mapping[str, Any], module: torch.nn.Module | None = None) -> None:
        """Read tensors into `into`, however many ranks wrote them and whichever way they were spread; `into`
        may be a part of what is there.

        Raises:
            InputError: the checkpoint is of another model; `module` helps to say why.
            CheckpointError: it cannot be read.
        """
        metadata: Metadata = self._reading(name, lambda: read_metadata(self.store, name))
        require_fit(metadata, into, self.at(name), module)
        alone = self._front.group is None
        reader = Reader(self.store, name, metadata)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="torch.distributed is disabled"
            )  # which is meant, alone
            self._reading(
                name,
                lambda: load(
                    dict(into),
                    storage_reader=reader,
                    planner=SafePlanner(),
                    process_group=self._front.group,
                    no_dist=alone,
                ),
            )

    def save(
        self,
        step: int,
        tensors: Mapping[str, Any],
        own: Any,
        shared: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> Saved | None:
        """Copy a state aside and go on; it is written behind. One that is still being written is waited for
        first, and returned.

        Args:
            tensors: nested dictionaries of tensors and DTensors.
            own: this rank's plain values.
            shared: plain values that are the same on all ranks (rank 0's are kept).
            metrics: this step's validation figures, if it had a validation.

        Raises:
            CheckpointError: an earlier save failed.
        """
        earlier = self.finish()
        save = _Save(step, time.monotonic())
        staged = self._staging.copy(tensors)
        failpoints.strike("staged", step)
        work = threading.Thread(
            target=self._write,
            args=(save, staged, own, dict(shared), dict(metrics)),
            daemon=True,
            name="checkpoint",
        )
        save.thread, self._running = work, save
        work.start()
        return earlier

    def poll(self) -> Saved | None:
        """Ask once after each step: the save that has ended since, the same on all ranks.

        Raises:
            CheckpointError: it failed past all its tries; the last good checkpoint is named.
        """
        save = self._running
        if save is None or save.thread is None:
            return None
        if self._front.any(save.thread.is_alive()):
            return None
        return self.finish()

    def finish(self) -> Saved | None:
        """Wait for the save under way, if there is one.

        Raises:
            CheckpointError: it failed.
        """
        save = self._running
        if save is None or save.thread is None:
            return None
        save.thread.join()
        self._running = None
        if save.error is not None:
            raise save.error
        return save.saved

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._running is not None

    def last_good(self) -> str | None:
        """The newest checkpoint not known to be damaged: its folder or URL. Asks no other rank."""
        try:
            names = list(self.notes())
        except StoreError:
            return None
        return self.at(names[-1]) if names else None

    def best(self) -> str | None:
        """The checkpoint with the best `metric` so far; the earlier one of equals. Asks no other rank."""
        sign = 1 if self.settings.mode == "min" else -1
        scored = [
            (sign * float(note["metrics"][self.settings.metric]), name)
            for name, note in self.notes().items()
            if self.settings.metric in note.get("metrics", {})
        ]
        return min(scored)[1] if scored else None

    def notes(self) -> dict[str, dict[str, Any]]:
        """What is noted of each checkpoint that is not known to be damaged, oldest first: `step` and
        `metrics`.
        """
        if self._notes is None:
            self._notes = {}
            for name in committed(self.store):
                try:
                    self._notes[name] = read_marker(self.store, name)["note"]
                except TornError:
                    self._refused.add(name)
        return {name: note for name, note in sorted(self._notes.items()) if name not in self._refused}

    def at(self, name: str) -> str:
        """A checkpoint's folder or URL."""
        return self.store.at(name)

    def abandon(self) -> None:
        """Let a save that is under way end, whatever comes of it: the run is over, and its error is worth
        more.
        """
        if self._running is not None and self._running.thread is not None:
            self._running.thread.join(ABANDON_S)

    def close(self) -> None:
        """Give up the process groups."""
        self._front.close()
        self._behind.close()

    def _tidied(self) -> list[str]:
        if not self.reading:
            discard_unfinished(self.store)
            self.notes()  # known from now on, also when the store does not answer
        return committed(self.store)

    def _damage(self, name: str) -> str | None:
        """What is wrong with a checkpoint, the same on all ranks, each of which has looked at its share of
        the files.
        """
        trouble: str | None = None
        failure: TrainfleetError | None = None
        try:
            files = read_marker(self.store, name)["files"]
            verify(
                self.store, name, files, lambda number: number % self._front.world_size == self._front.rank
            )
        except TornError as error:
            trouble = str(error)
        except StoreError as error:
            failure = error
        self._front.together(failure)
        found: str | None = self._front.share(
            next((each for each in self._front.gather(trouble) if each), None)
        )
        return found

    def _reading(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except TrainfleetError:
            raise
        except Exception as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise CheckpointError("cannot read a checkpoint", [Problem(self.at(name), said)]) from error

    def _write(
        self, save: _Save, staged: Staged, own: Any, shared: dict[str, Any], metrics: dict[str, float]
    ) -> None:
        """In the thread behind: every rank its share, then rank 0 the rest, then all know how it went."""
        name = step_name(save.step)
        try:
            self._behind.on_first(lambda: self._told_of(save.step, lambda: self._clear(name)))
            share: Share | None = None
            failure: TrainfleetError | None = None
            try:
                share = _as_ours(lambda: write_share(self.store, name, self._behind.rank, staged))
                failpoints.strike("in-save", name)
            except TrainfleetError as error:
                failure = error
            told = self._behind.gather((share, own, portable(failure)))
            note = {"step": save.step, "metrics": metrics}
            self._behind.on_first(
                lambda: self._told_of(save.step, lambda: self._commit_or_clear(name, told, shared, note))
            )
            size = sum(each.bytes for each in share.files.values()) if share else 0
            save.saved = Saved(save.step, self.at(name), time.monotonic() - save.began, size)
        except TrainfleetError as error:
            save.error = error
        except Exception as error:  # noqa: BLE001 - of the group behind: another rank is gone; handed over by `finish`
            save.error = self._explained(
                save.step, TrainfleetError(f"another rank is gone ({type(error).__name__})")
            )

    def _clear(self, name: str) -> None:
        """Take away what was there under this name: a damaged checkpoint of the same step, passed over at the
        start.
        """
        if self.store.sizes(name):
            withdraw(self.store, name)
        self._refused.discard(name)

    def _commit_or_clear(
        self,
        name: str,
        told: list[tuple[Share, Any, bytes | None]],
        shared: dict[str, Any],
        note: dict[str, Any],
    ) -> None:
        """Commit; where that fails leave nothing lying, or a full store would stay full."""
        try:
            self._commit(name, told, shared, note)
        except BaseException:
            with contextlib.suppress(StoreError):  # a store that is gone: the next start clears up
                withdraw(self.store, name)
                self.store.backend.prune()
            raise

    def _commit(
        self,
        name: str,
        told: list[tuple[Share, Any, bytes | None]],
        shared: dict[str, Any],
        note: dict[str, Any],
    ) -> None:
        failed = next((each for _, _, each in told if each is not None), None)
        if failed is not None:
            raise revived(failed)
        plan = self._staging.plan
        assert plan is not None
        assert plan.metadata is not None
        self.beside()
        commit(
            self.store,
            name,
            [share for share, _, _ in told],
            plan.metadata,
            plain={"shared": shared, "ranks": [own for _, own, _ in told]},
            note=note,
        )
        self.notes()
        if self._notes is not None:
            self._notes[name] = note
        self._purge(name)

    def _purge(self, newest: str) -> None:
        """Remove what is not to be kept. A store that refuses is told of, and the run goes on: there is only
        more than need be.
        """
        keep = self._kept() | {newest}
        for name in [name for name in self.notes() if name not in keep]:
            try:
                withdraw(self.store, name)
            except StoreError as error:
                self.notify(
                    "store",
                    f"cannot remove {self.at(name)}: {error.problems[0].what if error.problems else error.summary}",
                )
                continue
            if self._notes is not None:
                self._notes.pop(name, None)

    def _kept(self) -> set[str]:
        names = list(self.notes())
        keep = set(names[-self.settings.keep_last :])
        best = self.best()
        if self.settings.keep_best and best:
            keep.add(best)
        if self.settings.keep_every:
            keep |= {name for name in names if step_of(name) % self.settings.keep_every == 0}
        return keep

    def _told_of(self, step: int, action: Callable[[], Any]) -> Any:
        """Rank 0's part of a save: whatever goes wrong becomes the error that all ranks raise."""
        try:
            return _as_ours(action)
        except TrainfleetError as error:
            raise self._explained(step, error) from error

    def _explained(self, step: int, error: TrainfleetError) -> CheckpointError:
        last = self.last_good()
        kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        problems = error.problems or (Problem(self.store.url, error.summary),)
        return CheckpointError(
            f"cannot save the checkpoint of step {step}",
            [
                *problems,
                Problem(
                    "",
                    kept,
                    "mend what is said above, then run the same command again: it goes on from there",
                ),
            ],
        )


def _as_ours(action: Callable[[], Any]) -> Any:
    """Any error becomes one of ours, so that the other ranks hear of it instead of waiting."""
    try:
        return action()
    except TrainfleetError:
        raise
    except Exception as error:
        raise TrainfleetError(f"{type(error).__name__}: {error}") from error


def step_name(step: int) -> str:
    """The folder's name of a step: `step-00000100`; names sort like steps."""
    return f"step-{step:08}"


def step_of(name: str) -> int:
    """The step of a folder's name; -1 for other names."""
    digits = name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1
