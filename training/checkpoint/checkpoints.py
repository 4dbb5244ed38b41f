"""Save and load checkpoints: snapshot to memory, write and upload asynchronously, complete or absent.

Unless noted, methods are collective. The writer thread has its own process group; its result is the same on
all ranks, which get it from `poll` at the same step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.checkpoint.catalog import Catalog
from trainfleet.training.checkpoint.damage import damage_of
from trainfleet.training.checkpoint.errors import (
    CheckpointError,
    as_trainfleet_error,
    explain_read,
    save_error,
)
from trainfleet.training.checkpoint.files import (
    Reader,
    Share,
    commit,
    committed,
    discard_unfinished,
    read_metadata,
    read_plain,
    read_tensors,
    remove,
    write_share,
)
from trainfleet.training.checkpoint.plan import Staged, Staging, require_fit
from trainfleet.training.checkpoint.removal import Removals
from trainfleet.training.checkpoint.retention import best_of, step_name
from trainfleet.training.checkpoint.tolerance import FailedSaves
from trainfleet.training.checkpoint.verified import KEPT_READ_ONLY, VerifiedFiles
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runtime import failpoints
from trainfleet.training.runtime.collectives import Ranks, pack_error, unpack_error
from trainfleet.training.stores import Store, StoreError

Notify = Callable[[str, str], Any]
ABANDON_S = 120.0
"""How long a failed run waits for a pending save."""
REMOVALS_S = 30.0
"""How long the end of a run waits for the removal of old checkpoints. The next start removes what is left."""


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: its step, folder or URL, seconds of writing, and bytes written by this rank."""

    step: int
    path: str
    seconds: float
    written: int


@dataclass
class _Save:
    """A pending save; `thread` ends when every rank knows the result."""

    step: int
    began: float
    thread: threading.Thread | None = None
    saved: Saved | None = None
    error: TrainfleetError | None = None


class Checkpoints:
    """The checkpoints in one store."""

    def __init__(
        self,
        store: Store,
        config: CheckpointConfig,
        notify: Notify,
        *,
        read_only: bool = False,
        before_commit: Callable[[], Any] = lambda: None,
        before_removal: Callable[[], Any] = lambda: None,
        on_failed_save: Notify = lambda *_: None,
    ) -> None:
        """Open a store's checkpoints.

        Args:
            store: contains a folder per checkpoint.
            config: what to keep.
            notify: called with the kind of an event and a sentence about it.
            read_only: never change the store.
            before_commit: called on rank 0 in the writer thread before a checkpoint becomes visible, to
                upload what belongs to it.
            before_removal: called on rank 0 before anything is removed; an error prevents it.
            on_failed_save: called like `notify` when a save has failed and the run continues.
        """
        self.store, self.config, self.notify = store, config, notify
        self.read_only, self.before_commit, self.before_removal = read_only, before_commit, before_removal
        self.on_failed_save, self.failures = on_failed_save, FailedSaves(config.tolerate)
        self.loop_ranks = Ranks()
        self._writer_ranks = Ranks()
        self.staging = Staging(self.loop_ranks)
        self._pending: _Save | None = None
        self._catalog = Catalog(store, config)
        self._removals = Removals(self._remove_superseded)
        self._verified = VerifiedFiles(KEPT_READ_ONLY if read_only else None)

    def choose(self) -> str | None:
        """The newest intact checkpoint; None if there is none. Removes incomplete ones. What each rank has
        verified stays in its memory until `load`.

        Raises:
            CheckpointError: all checkpoints are damaged, so that a fresh start would hide the damage.
            StoreError: the store does not respond.
        """
        names = self.loop_ranks.on_first(self._clean_up)
        problems: list[Problem] = []
        for name in reversed(names):
            damage = damage_of(self.store, name, self.loop_ranks, self._verified)
            if damage is None:
                for problem in problems:
                    self.notify("fallback", f"{problem} - resuming from {name}")
                return str(name)
            self._catalog.mark_damaged(name)
            problems.append(Problem(self.at(name), damage))
        if problems:
            fix = f"move {self.store.url} away to start over"
            problems.append(Problem("", "all of them are damaged", fix))
            raise CheckpointError("no checkpoint of this run can be read", problems)
        return None

    def read(self, name: str) -> dict[str, Any]:
        """A checkpoint's plain values: `shared` by name, and `ranks`, a list with those of each writing rank.

        Raises:
            CheckpointError: it cannot be read.
        """
        kept = self._verified.of(name)
        plain: dict[str, Any] = explain_read(self.at(name), lambda: read_plain(self.store, name, kept))
        return plain

    def load(self, name: str, into: Mapping[str, Any], module: torch.nn.Module | None = None) -> None:
        """Load tensors into `into`, which may be a part of the checkpoint.

        The number of ranks and the sharding may differ from those that wrote it.

        Raises:
            InputError: the checkpoint is of another model; `module` improves the message.
            CheckpointError: it cannot be read.
        """
        ranks, kept = self.loop_ranks, self._verified.of(name)
        metadata: Metadata = explain_read(self.at(name), lambda: read_metadata(self.store, name, ranks, kept))
        require_fit(metadata, into, self.at(name), module)
        reader = Reader(self.store, name, metadata, kept)
        explain_read(self.at(name), lambda: read_tensors(reader, into, ranks))
        self._verified.release()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Any],
        rank_values: Any,
        shared: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> Saved | None:
        """Snapshot a state and write it asynchronously. Waits for a pending save first, and returns it.

        While saves fail, a pending one is not waited for: nothing is saved then.

        Args:
            step: steps done.
            tensors: nested dictionaries of tensors and DTensors.
            rank_values: this rank's plain values.
            shared: plain values that are the same on all ranks (rank 0's are saved).
            metrics: of the validation after this step, if there was one.

        Raises:
            CheckpointError: an earlier save failed, and `checkpoint.tolerate` does not allow it.
        """
        if self.busy and self.failures.in_a_row:
            return None
        earlier = self.finish()
        save = _Save(step, time.monotonic())
        staged = self.staging.copy(tensors)
        failpoints.hit("staged", step)
        work = threading.Thread(
            target=self._write,
            args=(save, staged, rank_values, dict(shared), dict(metrics)),
            daemon=True,
            name="checkpoint",
        )
        save.thread, self._pending = work, save
        work.start()
        return earlier

    @property
    def writing(self) -> bool:
        """Whether this rank is writing a checkpoint now."""
        thread = self._pending.thread if self._pending is not None else None
        return thread is not None and thread.is_alive()

    def poll(self, writing: bool | None = None) -> Saved | None:
        """Call once after each step: the save that has completed, the same on all ranks. `writing`: whether
        any rank was `writing` after the pending save began; None to ask all ranks.

        Raises:
            CheckpointError: it failed in all attempts, and `checkpoint.tolerate` does not allow it; names the
                last good checkpoint.
        """
        if self._pending is None:
            return None
        if self.loop_ranks.any(self.writing) if writing is None else writing:
            return None
        return self.finish()

    def finish(self) -> Saved | None:
        """Wait for the pending save, if there is one.

        Raises:
            CheckpointError: it failed, and `checkpoint.tolerate` does not allow it.
        """
        save = self._pending
        if save is None or save.thread is None:
            return None
        save.thread.join()
        self._pending = None
        if save.error is None:
            self.failures.succeeded()
            return save.saved
        # The clocks of the ranks differ, and all of them must decide alike.
        if self.loop_ranks.any(self.failures.failed(save.error)):
            raise save.error
        left = f"{self.failures.in_a_row} in a row, {self.failures.minutes:.1f} minutes without a checkpoint"
        why = save.error.problems[0] if save.error.problems else save.error.summary
        self.on_failed_save(
            "save_failed", f"step {save.step} is not saved, the run continues ({left}): {why}"
        )
        return None

    @property
    def busy(self) -> bool:
        """Whether a save is pending."""
        return self._pending is not None

    def last_good(self) -> str | None:
        """Folder or URL of the newest checkpoint not known to be damaged. Not collective."""
        try:
            names = list(self.notes())
        except StoreError:
            return None
        return self.at(names[-1]) if names else None

    def best(self) -> str | None:
        """The checkpoint with the best `metric`; the earliest of equals. Not collective."""
        return best_of(self.notes(), self.config)

    def notes(self) -> dict[str, dict[str, Any]]:
        """`step` and `metrics` of each checkpoint that is not known to be damaged, oldest first."""
        return self._catalog.notes()

    def at(self, name: str) -> str:
        """A checkpoint's folder or URL."""
        return self.store.at(name)

    def abandon(self) -> None:
        """Wait for a pending save, whose result is ignored, and for removals: the run ends."""
        if self._pending is not None and self._pending.thread is not None:
            self._pending.thread.join(ABANDON_S)
        self._removals.wait(REMOVALS_S)

    def close(self) -> None:
        """Destroy the process groups."""
        self.loop_ranks.close()
        self._writer_ranks.close()

    def _clean_up(self) -> list[str]:
        if not self.read_only:
            self._removals.cancel()  # the run may need an older one
            self.before_removal()
            discard_unfinished(self.store)
            self.notes()  # cached, so that they are known when the store does not respond
        return committed(self.store)

    def _write(
        self, save: _Save, staged: Staged, rank_values: Any, shared: dict[str, Any], metrics: dict[str, float]
    ) -> None:
        """In the writer thread: every rank writes its share, rank 0 commits, then all ranks know the result.

        NOTE: must not raise on one rank only, or the others wait in a collective.
        """
        name = step_name(save.step)
        try:
            self._writer_ranks.on_first(
                lambda: self._explain_save(save.step, lambda: self._remove_damaged(name))
            )
            share: Share | None = None
            failure: TrainfleetError | None = None
            try:
                self.staging.copies.wait()
                share = as_trainfleet_error(
                    lambda: write_share(self.store, name, self._writer_ranks.rank, staged)
                )
                failpoints.hit("in-save", name)
            except TrainfleetError as error:
                failure = error
            written = self._writer_ranks.gather((share, rank_values, pack_error(failure)))
            note = {"step": save.step, "metrics": metrics}
            self._writer_ranks.on_first(
                lambda: self._explain_save(
                    save.step, lambda: self._commit_or_remove(name, written, shared, note)
                )
            )
            size = sum(each.bytes for each in share.files.values()) if share else 0
            save.saved = Saved(save.step, self.at(name), time.monotonic() - save.began, size)
        except TrainfleetError as error:
            save.error = error
        except Exception as error:  # noqa: BLE001 - of the writers' group: another rank died; raised by `finish`
            died = TrainfleetError(f"another rank died ({type(error).__name__})")
            save.error = save_error(save.step, died, self.store.url, self.last_good())

    def _remove_damaged(self, name: str) -> None:
        """Remove a damaged checkpoint of the same step."""
        self._removals.exclude(name)
        if self.store.sizes(name):
            self.before_removal()
            remove(self.store, name)
        self._catalog.forget(name)

    def _commit_or_remove(
        self,
        name: str,
        written: list[tuple[Share, Any, bytes | None]],
        shared: dict[str, Any],
        note: dict[str, Any],
    ) -> None:
        """Commit; if that fails, remove everything, or a full store would stay full.

        NOTE: not if another run has taken over: it may have committed this step.
        """
        try:
            self._commit(name, written, shared, note)
        except BaseException:
            with contextlib.suppress(TrainfleetError):  # the next start cleans up
                self.before_removal()
                remove(self.store, name)
                self.store.backend.prune()
            raise

    def _commit(
        self,
        name: str,
        written: list[tuple[Share, Any, bytes | None]],
        shared: dict[str, Any],
        note: dict[str, Any],
    ) -> None:
        failed = next((each for _, _, each in written if each is not None), None)
        if failed is not None:
            raise unpack_error(failed)
        plan = self.staging.plan
        assert plan is not None
        assert plan.metadata is not None
        self.before_commit()
        commit(
            self.store,
            name,
            [share for share, _, _ in written],
            plan.metadata,
            plain={"shared": shared, "ranks": [values for _, values, _ in written]},
            note=note,
        )
        self._catalog.add(name, note)
        self._removals.add(self._catalog.superseded(name))

    def _remove_superseded(self, name: str) -> None:
        """In the thread of removals: a failure is reported, and tried again after the next save."""
        try:
            as_trainfleet_error(self.before_removal)
            as_trainfleet_error(lambda: remove(self.store, name))
        except TrainfleetError as error:  # any other would end the thread
            reason = error.problems[0].what if error.problems else error.summary
            self.notify("store", f"cannot remove {self.at(name)}: {reason}")
            return
        self._catalog.forget(name)

    def _explain_save(self, step: int, action: Callable[[], Any]) -> Any:
        """Rank 0's part of a save: any failure becomes the error that all ranks raise."""
        try:
            return as_trainfleet_error(action)
        except TrainfleetError as error:
            raise save_error(step, error, self.store.url, self.last_good()) from error
