"""Where a run is kept: its readable side in a folder of this machine, its checkpoints there or below a URL.

Used by the step loop on every rank, and by launchers before it. With a URL the readable side (metrics.jsonl,
run.json, ...) goes
along with each checkpoint and is fetched first on another machine. Easy to get wrong: whichever of the two
sides is older
must give way, so home.json counts the uploads and is written last.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.stores import NotFoundError, RetryPolicy, Store, StoreError, is_remote, open_store
from trainfleet.training.stores.lease import Lease

READABLE = ("run.json", "recipe.yaml", "metrics.jsonl", "report.html")
HOME = "home.json"


def patience(recipe: Recipe) -> RetryPolicy:
    """The recipe's patience with stores."""
    said = recipe.checkpoint.patience
    return RetryPolicy(said.attempts, said.first_wait, said.longest_wait, said.stall)


class RunStorage:
    """A run's two places; the same one for a run whose storage is a folder."""

    def __init__(self, recipe: Recipe, run_dir: Path, notify: Callable[[str, str], Any]) -> None:
        self.run_dir = run_dir
        self.url = recipe.home_url()
        self.store: Store | None = (
            open_store(self.url, patience(recipe), notify) if is_remote(self.url) else None
        )
        self.checkpoints = open_store(
            f"{self.url if self.store else run_dir}/checkpoints", patience(recipe), notify
        )
        self._notify = notify
        self._lease: Lease | None = None

    def enter(self, launch: str) -> None:
        """Make sure that the run can be written and that nobody else does; rank 0 alone, before anything
        else.

        Raises:
            InputError: another run is at work here.
            StoreError: a right is missing, or the store does not answer.
        """
        home = self.store or open_store(str(self.run_dir), self.checkpoints.patience, self._notify)
        lease = Lease(home, launch)
        try:
            if self.store is not None:
                self.store.probe()
            lease.acquire(self._notify)
        except StoreError as error:
            if self.store is not None:
                raise
            problems = [
                Problem(str(self.run_dir), each.what, each.fix or "choose another with --storage DIR")
                for each in error.problems
            ]
            raise InputError("cannot write the run's folder", problems) from error
        self._lease = lease

    def leave(self) -> None:
        """Let others in."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def send(self) -> None:
        """Upload the readable side; for a folder there is nothing to do but to see that it is still ours.

        Raises:
            InputError: another run has come in.
            StoreError: past all tries.
        """
        if self._lease is not None:
            self._lease.check()
        if self.store is None:
            return
        for name in READABLE:
            with contextlib.suppress(FileNotFoundError):
                self.store.put(name, (self.run_dir / name).read_bytes())
        home = json.dumps({"url": self.url, "uploads": _uploads(self._here()) + 1})
        self.store.put(HOME, home.encode())
        write_whole(self.run_dir / HOME, home)

    def refuse_to_bury(self) -> None:
        """A fresh start where a store holds a run already: it cannot be moved aside there, and is never
        deleted.

        Raises:
            InputError: there is one.
        """
        if self.store is not None and self.store.sizes():
            problem = Problem(
                self.url,
                "holds a run already, which cannot be moved aside in an object store",
                "use --run NAME for a new one",
            )
            raise InputError("--fresh would bury a run", [problem])

    def fetch(self) -> bool:
        """Bring the readable side here where the store's is newer; returns whether it did.

        Raises:
            InputError: the folder belongs to another run's URL.
            StoreError: the store does not answer.
        """
        if self.store is None:
            return False
        here = self._here()
        if here.get("url", self.url) != self.url:
            problem = Problem(
                str(self.run_dir),
                f"holds what {here['url']} left here",
                "use --run NAME, or move the folder away",
            )
            raise InputError("this folder belongs to a run of another storage", [problem])
        try:
            there = self.store.read(HOME)
        except NotFoundError:
            return False
        if _uploads(_document(there)) <= _uploads(here):
            return False
        for name in READABLE:
            with contextlib.suppress(NotFoundError):
                self.store.fetch(name, self.run_dir / name)
        write_whole(self.run_dir / HOME, there)
        return True

    def _here(self) -> dict[str, Any]:
        try:
            return _document((self.run_dir / HOME).read_bytes())
        except OSError:
            return {}


def _document(data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError):
        return {}


def _uploads(document: dict[str, Any]) -> int:
    count = document.get("uploads", 0)
    return count if isinstance(count, int) else 0
