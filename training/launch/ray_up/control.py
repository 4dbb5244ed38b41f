"""The control of a run by `ray up`: through its cluster file, on the machine that launched it; else through
its storage.
"""

from __future__ import annotations

import contextlib
import platform
import queue
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.control import ALREADY_ENDED, SAVED, Dashboard, RunControl, await_end
from trainfleet.training.launch.ray_up import processes
from trainfleet.training.launch.ray_up.follow import Follower
from trainfleet.training.launch.ray_up.messages import SPEC, RayUpSpec
from trainfleet.training.launch.ray_up.run_spec import job_name
from trainfleet.training.launch.remote.log_stream import Line, Once, parse
from trainfleet.training.launch.remote.ray_job import DASHBOARD_PORT
from trainfleet.training.runs.listing import ENDED
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.stores.lease import LEASE, request_stop


class RayUpControl(RunControl):
    """A job on a Ray cluster of machines that Ray's launcher started."""

    @property
    def host(self) -> str:
        """The machine that launched it, which has its cluster file."""
        return str(self.ref.launch.get("host") or "the machine of the launch")

    @cached_property
    def follower(self) -> Follower | None:
        """The operations of the launch's follower; None on another machine, or when the machines are gone."""
        file = Path(str(self.ref.place.get("file", "")))
        spec = file.with_name(SPEC) if file.name else file
        if self.ref.launch.get("host") != platform.node() or not spec.is_file() or not file.is_file():
            return None
        message = RayUpSpec.read(spec)
        if message.job != job_name(self.ref.name):  # a later run on machines that stay
            return None
        found = Follower(message, EventSink(None))
        found.up = True
        return found

    def lines(self, *, follow: bool) -> Iterator[Line]:
        """The job's log through the head; its stored rows from other machines."""
        follower = self.follower
        if follower is None:
            file = self.ref.place.get("file", "")
            text = f"read from its storage, with each checkpoint: its log needs the cluster file {file}"
            yield {"kind": "note", "text": f"{text} on {self.host}"}
            yield from super().lines(follow=follow)
            return
        lines, once = queue.SimpleQueue[Line | None](), Once()
        with processes.tunnel(follower.spec.file, DASHBOARD_PORT) as address:
            child = follower.submitter(address)

            def read() -> None:
                assert child.stdout is not None
                for text in child.stdout:
                    if once(line := parse(text.rstrip("\n"))):
                        lines.put(line)
                lines.put(None)

            threading.Thread(target=read, daemon=True, name="job-log").start()
            try:
                while (line := lines.get()) is not None:
                    yield line
            finally:
                processes.end(child)

    def stop(self, *, now: bool, within_s: float, report: Callable[[str], Any]) -> str:
        """Ask its ranks to save, wait for its end, and delete its machines, unless they outlive it."""
        follower, store, info = self.follower, self.store(), self.info()
        ended = info is not None and info.state in ENDED
        how = ALREADY_ENDED if ended else "ended at once"
        if follower is None:
            if ended:
                return how
            text = super().stop(now=now, within_s=within_s, report=report)
            return f"{text}; {self._left()}"
        if not ended and not now and LEASE in store.entries():
            request_stop(store)
            report("is asked to save and end")
            late = f"did not end within {within_s:.0f} s, and was ended at its newest checkpoint"
            how = SAVED if await_end(store, within_s) else late
        if follower.spec.stays:
            if now and not ended:
                what = "runs on machines that stay; only its ranks can be asked"
                raise InputError(
                    "the run cannot be ended at once", [Problem(self.ref.name, what, "leave out --now")]
                )
            if not ended and how != SAVED:
                report("is ended by Ray")
                with processes.tunnel(follower.spec.file, DASHBOARD_PORT) as address:
                    how = how if follower.end_job(address) else ALREADY_ENDED
            return how
        report("has its machines taken down")
        follower.delete_machines()
        if Path(follower.spec.file).exists():
            problem = Problem(follower.spec.name, "may still have machines", f"ray down {follower.spec.file}")
            raise TrainfleetError("`ray down` failed", [problem])
        return how

    def _left(self) -> str:
        """What a machine without the cluster file cannot do."""
        file = self.ref.place.get("file", "")
        return f"its launcher deletes the machines; if that has ended: `ray down {file}` on {self.host}"

    @contextlib.contextmanager
    def dashboard(self, port: int, report: Callable[[str], Any]) -> Iterator[Dashboard]:  # noqa: ARG002 - as siblings
        """Through ssh to the head."""
        follower = self.follower
        if follower is None:
            what = (
                f"is reached with the cluster file {self.ref.place.get('file', '')}, which is on {self.host}"
            )
            raise InputError("there is no dashboard", [Problem(self.ref.name, what)])
        token = follower.paths.token.read_text(encoding="utf-8").strip()
        with processes.tunnel(follower.spec.file, DASHBOARD_PORT, port) as address:
            yield Dashboard(address, follower.spec.name, token)
