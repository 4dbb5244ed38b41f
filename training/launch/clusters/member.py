"""The process of one run: a launch that reports its events to the command that started it.

python -m trainfleet.training.launch.clusters.member SPEC.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, TrainfleetError
from trainfleet.training.launch.attach import attach
from trainfleet.training.launch.base import find
from trainfleet.training.launch.control import RunControl
from trainfleet.training.launch.find_run import find_run
from trainfleet.training.launch.remote.follower import Message, print_line
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import Outcome, start
from trainfleet.training.runs.listing import ENDED as ENDED_RUN
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.stores.lease import IN_PROGRESS

ENDED = "ended"
"""The last event of a member: how its run ended."""
ENDING_S = 90.0
"""How long a run of this machine, whose launcher was killed, may take to end or to be known as lost."""
POLL_S = 0.2


class MemberSpec(Message):
    """What the process of a cluster launches, and where it reports."""

    cluster: str
    address: str
    """Of the group's socket."""
    parent: int
    """Process id of the group."""
    on: str
    request: dict[str, Any]
    """The fields of `Request` other than `on` and `options`."""
    options: dict[str, Any]
    join: bool = False
    """Whether to follow the run instead if it still trains; found by its name below the request's storage."""

    @classmethod
    def of(
        cls, request: Request, *, cluster: str, address: str, parent: int, join: bool = False
    ) -> MemberSpec:
        """The message for a request.

        Options that were not given are left out, because a default that is given can have another effect.
        """
        values = {each.name: getattr(request, each.name) for each in fields(request)}
        on, options = values.pop("on"), values.pop("options")
        return cls(
            cluster=cluster,
            address=address,
            parent=parent,
            on=on,
            request=values,
            options={} if options is None else options.model_dump(exclude_unset=True),
            join=join,
        )

    def launch(self) -> Request:
        """The request that the group wrote."""
        request = TypeAdapter(Request).validate_python({**self.request, "on": self.on})
        return replace(request, options=find(self.on).options_model.model_validate(self.options))


class Forward:
    """A display that sends every event to the group, which asks the questions itself."""

    def __init__(self, sink: EventSink, cluster: str) -> None:
        self._sink, self._cluster = sink, cluster

    def handle(self, event: Mapping[str, Any]) -> None:
        fields = {key: value for key, value in event.items() if key not in ("kind", "cluster")}
        self._sink.send(str(event["kind"]), **fields, cluster=self._cluster)

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:  # noqa: ARG002 - as siblings
        return next(iter(answers))

    def close(self) -> None: ...


def joined(request: Request, view: Forward, folder: Path) -> Outcome:
    """Follow a run that an earlier launch left training, else launch it.

    A run whose launch was recorded may never have been submitted; only its cluster knows, so it is launched
    unless that says that it exists.

    Raises:
        TrainfleetError: the run failed or cannot be launched.
    """
    control = _control(request)
    if find(request.on).remote:
        if control is not None and _state(control) == "running":
            return _follow(control, view, folder)
    else:
        # Its ranks may still be ending, after their launcher was killed.
        deadline = time.monotonic() + ENDING_S
        while control is not None and _state(control) == "running" and time.monotonic() < deadline:
            time.sleep(POLL_S)
    try:
        return start(request, view=view)
    except InputError as error:
        found = _control(request) if error.summary == IN_PROGRESS and find(request.on).remote else None
        if found is None:
            raise
        return _follow(found, view, folder)


def _control(request: Request) -> RunControl | None:
    """The run of a request in its storage; None if it was never launched."""
    try:
        return find_run(str(request.run), Where(), request.storage)
    except InputError:
        return None


def _state(control: RunControl) -> str:
    info = control.info()
    return info.state if info is not None else ""


def _follow(control: RunControl, view: Forward, folder: Path) -> Outcome:
    """Follow the run to its end, with files in `folder`. A signal ends only this process."""

    def leave(_: int) -> None:
        raise KeyboardInterrupt

    text = "following the run, which an earlier launch started"
    print_line(text)
    view.handle({"kind": "note", "text": text})
    folder.mkdir(exist_ok=True)
    request = control.attach_request(folder, as_json=True)
    try:
        if request is not None:
            return start(request, view=view)
        with process.on_stop(leave):
            return attach(control, as_json=True, view=view)
    finally:
        _release(control, view)


def _release(control: RunControl, view: Forward) -> None:
    """Delete what a run that has ended left in its cluster. Its own launch, which would have, was killed."""
    try:
        if _state(control) in ENDED_RUN:
            control.stop(now=False, within_s=ENDING_S, report=lambda _: None)
    except TrainfleetError as error:
        problems = "; ".join(str(each) for each in error.problems)
        view.handle(
            {"kind": "warning", "text": f"what the run left is not deleted: {error.summary}: {problems}"}
        )


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the process; returns the exit code of the launch."""
    file = Path((arguments or sys.argv[1:])[0])
    spec = MemberSpec.read(file)
    process.die_with(spec.parent)
    sink = EventSink(spec.address)
    view = Forward(sink, spec.cluster)
    try:
        request = spec.launch()
        folder = file.with_suffix(".run")
        outcome = joined(request, view, folder) if spec.join else start(request, view=view)
    except TrainfleetError as error:
        status = "interrupted" if isinstance(error, Interrupted) else "failed"
        problems = [[each.where, each.what, each.fix] for each in error.problems]
        view.handle({"kind": ENDED, "status": status, "summary": error.summary, "problems": problems})
        return error.exit_code
    finally:
        sys.stdout.flush()
    status = str(outcome.document.get("status", "finished"))
    view.handle({"kind": ENDED, "status": status, "document": outcome.document})
    sink.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
