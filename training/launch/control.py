"""What `trainfleet runs` does with a run: one interface, a class per launcher."""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.remote.log_stream import Line
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.stored_lines import stored_lines
from trainfleet.training.runs.listing import RETRY, RunInfo, is_held, read_info
from trainfleet.training.stores import Store, open_store
from trainfleet.training.stores.lease import LEASE, request_stop

POLL_S = 1.0
ALREADY_ENDED, SAVED = "had already ended", "saved and ended"
"""How a stop ended."""


@dataclass(frozen=True)
class RunRef:
    """A run that was found, and what is recorded of where it is.

    Attributes:
        home: the folder or URL of its files; empty if unknown.
        launch: its last launch, as in run.json.
        where: the cluster that the user named.
        by_storage: whether the user named its storage, and no cluster.
    """

    name: str
    home: str
    launch: Mapping[str, Any] = field(default_factory=dict)
    where: Where = field(default_factory=Where)
    by_storage: bool = False

    @property
    def place(self) -> Mapping[str, Any]:
        """Where its launcher put it: the fields depend on the launcher."""
        place = self.launch.get("place")
        return place if isinstance(place, Mapping) else {}


@dataclass(frozen=True)
class Dashboard:
    """Ray's dashboard of a run, reachable on this machine."""

    address: str
    ray_cluster: str
    token: str | None = None


class RunControl(ABC):  # noqa: B024 - each method has a default that needs only the run's storage
    """The operations on one run. The defaults use its storage only, so they work from any machine that may
    read it (`stop`: write it); steps then arrive with each checkpoint.
    """

    def __init__(self, ref: RunRef) -> None:
        self.ref = ref

    def lines(self, *, follow: bool) -> Iterator[Line]:
        """The run's events and output; with `follow`, those until its end.

        Raises:
            TrainfleetError: it cannot be reached, or has printed nothing yet.
        """
        store = self.store()
        yield from stored_lines(store, self.ref.name, follow=follow, held=lambda: is_held(store))

    def stop(self, *, now: bool, within_s: float, report: Callable[[str], Any]) -> str:
        """Ask the run to save and end, wait for it, and release its machines.

        Args:
            now: do not wait for a last checkpoint.
            within_s: how long saving may take.
            report: shows what is being done.

        Returns:
            How it ended, in words that follow the run's name.

        Raises:
            TrainfleetError: it cannot be reached.
        """
        store = self.store()
        info = self.info()
        if info is None or info.state in ("finished", "stopped", "failed", "interrupted"):
            return ALREADY_ENDED
        if now:
            what = "is reached through its storage only, where it can be asked to save and end"
            raise InputError(
                "the run cannot be ended at once", [Problem(self.ref.name, what, "leave out --now")]
            )
        if info.state == "lost" or not request_stop(store):
            fix = "run this where it was launched, or name its cluster with --stack or --context"
            what = f"is {info.state}, and no process of it holds {store.at(LEASE)}"
            raise TrainfleetError("nothing could be asked to stop", [Problem(self.ref.name, what, fix)])
        report("is asked, through its storage, to save and end")
        if await_end(store, within_s):
            return SAVED
        return f"did not end within {within_s:.0f} s; it stays asked to save and end"

    def attach_request(self, folder: Path, as_json: bool) -> Request | None:  # noqa: ARG002 - as subclasses
        """A launch that follows the run, with files in `folder`; None: `lines` has all that is known."""
        return None

    def dashboard(self, port: int, report: Callable[[str], Any]) -> AbstractContextManager[Dashboard]:  # noqa: ARG002
        """Ray's dashboard on a port of this machine, while the block runs.

        Raises:
            InputError: there is none.
        """
        on = self.ref.launch.get("on", "this launcher")
        problem = Problem(self.ref.name, f"a run of --on {on} has no dashboard")
        raise InputError("there is no dashboard", [problem])

    def store(self) -> Store:
        """The run's files.

        Raises:
            InputError: nothing records where they are.
        """
        if not self.ref.home:
            problem = Problem(self.ref.name, "has no record of its storage", "name it with --storage URL")
            raise InputError("the run's storage is unknown", [problem])
        return open_store(self.ref.home, RETRY)

    def info(self) -> RunInfo | None:
        """What its files and the lock of its folder tell; None if there are none."""
        store = self.store()
        return read_info(store, self.ref.name, is_held(store))


def await_end(store: Store, within_s: float) -> bool:
    """Wait until no process of a run holds its lease, which it releases after its last checkpoint; whether
    that came in time.

    Raises:
        StoreError: the store does not respond.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if LEASE not in store.entries():
            return True
        time.sleep(POLL_S)
    return LEASE not in store.entries()
