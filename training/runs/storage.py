"""Where a run is stored: readable files in a local folder, checkpoints there or below a URL.

With a URL, the readable files are uploaded with each checkpoint and downloaded first on another machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_run, real_launches
from trainfleet.training.stores import NotFoundError, RetryPolicy, Store, StoreError, is_remote, open_store
from trainfleet.training.stores.lease import Lease

READABLE = ("run.json", "recipe.yaml", "metrics.jsonl", "report.html")
HOME = "home.json"
LAUNCH = "launch.json"
"""The last launch of a run below a URL, for other machines: it is stored before the run starts."""
CODE_FOLDER = "code/"
"""Archives of the user's code, which are stored before the run starts."""
NOTIFICATIONS = "notifications/"
"""A file for each message about the run that was delivered."""


def retry_policy(recipe: Recipe) -> RetryPolicy:
    """How long the recipe retries a failing store."""
    config = recipe.checkpoint.patience
    return RetryPolicy(config.attempts, config.first_wait, config.longest_wait, config.stall)


def checkpoints_url(recipe: Recipe, run_dir: Path) -> str:
    """The folder or URL of a run's checkpoints."""
    url = recipe.home_url()
    return f"{url if is_remote(url) else run_dir}/checkpoints"


class RunStorage:
    """The local folder and the store of a run; the same place if `storage` is a folder."""

    def __init__(self, recipe: Recipe, run_dir: Path, notify: Callable[[str, str], Any]) -> None:
        self.run_dir = run_dir
        self.url = recipe.home_url()
        self.store: Store | None = (
            open_store(self.url, retry_policy(recipe), notify) if is_remote(self.url) else None
        )
        self.checkpoints = open_store(checkpoints_url(recipe, run_dir), retry_policy(recipe), notify)
        self._notify, self._tolerate_minutes = notify, recipe.checkpoint.tolerate.minutes
        self._lease: Lease | None = None
        self._replaced: bytes | None = None
        self._recorded: bytes | None = None

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Wait for a store that does not respond, up to the minutes of `checkpoint.tolerate`: a start has
        nothing else to do.
        """
        stores = [store for store in (self.store, self.checkpoints) if store is not None]
        hurried = self.checkpoints.retry
        for store in stores:
            store.retry = replace(hurried, budget_s=60 * self._tolerate_minutes)
        try:
            yield
        finally:
            for store in stores:
                store.retry = hurried

    def open_home(self) -> Store:
        """The run's folder, or its URL if it has one. Any rank."""
        return self.store or open_store(str(self.run_dir), self.checkpoints.retry, self._notify)

    def enter(self, launch: str) -> None:
        """Acquire exclusive write access for this launch. Rank 0 only, before anything else.

        Raises:
            InputError: another launch is writing this run.
            StoreError: a permission is missing, or the store does not respond.
        """
        lease = Lease(self.open_home(), launch)
        try:
            if self.store is not None:
                self.store.probe()
            lease.acquire(self._notify)
        except StoreError as error:
            if self.store is not None:
                raise
            problems = [
                Problem(str(self.run_dir), each.what, each.fix or "choose another folder with --storage DIR")
                for each in error.problems
            ]
            raise InputError("cannot write the run folder", problems) from error
        self._lease = lease

    def require_access(self) -> None:
        """Require that this launch still has the write access, before anything that cannot be undone.

        Raises:
            InputError: another launch has taken over.
            StoreError: the store does not respond.
        """
        if self._lease is not None:
            self._lease.verify()

    @property
    def stop_requested(self) -> bool:
        """Whether `trainfleet runs stop` has asked this launch, through the storage, to save and end."""
        return self._lease is not None and self._lease.stop_requested

    def record_launch(self, launch: Mapping[str, Any]) -> None:
        """Store what other machines need to find this launch. A folder has it in run.json.

        Raises:
            StoreError: all attempts failed.
        """
        if self.store is None:
            return
        if self._recorded is None:
            with contextlib.suppress(NotFoundError):
                self._replaced = self.store.read(LAUNCH)
        self._recorded = json.dumps(launch, indent=1).encode()
        self.store.put(LAUNCH, self._recorded)

    def restore_launch(self) -> None:
        """Put back the launch that `record_launch` replaced, unless another was stored since.

        Raises:
            StoreError: the store does not respond.
        """
        if self.store is not None and self._replaced is not None:
            with contextlib.suppress(NotFoundError):
                if self.store.read(LAUNCH) == self._recorded:
                    self.store.put(LAUNCH, self._replaced)

    def leave(self) -> None:
        """Release the write access."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def send(self) -> None:
        """Upload the readable files. For a folder, only check that the write access is still held.

        Raises:
            InputError: another launch has taken over.
            StoreError: all attempts failed.
        """
        self.require_access()
        if self.store is None:
            return
        for name in READABLE:
            with contextlib.suppress(FileNotFoundError):
                self.store.put(name, (self.run_dir / name).read_bytes())
        # NOTE: written last, because the number of uploads decides which side is older and is overwritten.
        home = json.dumps({"url": self.url, "uploads": _uploads(self._local_home()) + 1})
        self.store.put(HOME, home.encode())
        write_whole(self.run_dir / HOME, home)

    def require_empty(self) -> None:
        """Reject a fresh start if the store already has a run, which cannot be moved aside and is never
        deleted.

        Raises:
            InputError: the store has a run.
        """

        def is_of_run(path: str) -> bool:
            return path != LAUNCH and not path.startswith((CODE_FOLDER, NOTIFICATIONS))

        if self.store is not None and any(map(is_of_run, self.store.sizes())):
            problem = Problem(
                self.url,
                "already contains a run, which cannot be moved aside in an object store",
                "start a new run with --run NAME",
            )
            raise InputError("--fresh would overwrite a run", [problem])

    def fetch(self) -> bool:
        """Download the readable files if the store's are newer; returns whether they were.

        Raises:
            InputError: the local folder belongs to a run with another storage.
            StoreError: the store does not respond.
        """
        require_same_home(self.run_dir, self.url)
        return self.store is not None and download(self.store, self.run_dir)

    def _local_home(self) -> dict[str, Any]:
        return _local_home(self.run_dir)


def require_same_home(run_dir: Path, home: str) -> None:
    """Reject a folder with the files of a run that is stored elsewhere. They would be overwritten, or taken
    for those of the run in `home`.

    Raises:
        InputError: at least one of the two is a URL, and they differ.
    """
    found = str(_local_home(run_dir).get("url") or _home_of_launches(run_dir))
    if found and found != home and (is_remote(found) or is_remote(home)):
        problem = Problem(
            str(run_dir), f"contains files of {found}", "use --run NAME, or move the folder away"
        )
        raise InputError("this folder belongs to a run with another storage", [problem])


def _home_of_launches(run_dir: Path) -> str:
    """Where the last launch into a folder stored its run, before its first upload; empty if it did not."""
    record = read_run(run_dir)
    launches = real_launches(record)
    url = str(launches[-1].get("storage", "")) if launches else ""
    return url if is_remote(url) else str(run_dir) if launches and record.get("starts") else ""


def download(store: Store, run_dir: Path) -> bool:
    """Download a run's readable files if the store's are newer; returns whether they were.

    Raises:
        StoreError: the store does not respond.
    """
    try:
        remote = store.read(HOME)
    except NotFoundError:
        return False
    if _uploads(_document(remote)) <= _uploads(_local_home(run_dir)):
        return False
    for name in READABLE:
        with contextlib.suppress(NotFoundError):
            store.fetch(name, run_dir / name)
    write_whole(run_dir / HOME, remote)
    return True


def _local_home(run_dir: Path) -> dict[str, Any]:
    try:
        return _document((run_dir / HOME).read_bytes())
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
