"""The process of one cluster: a launch that reports its events to the group.

python -m trainfleet.training.launch.clusters.member SPEC.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainfleet import process
from trainfleet.errors import Interrupted, TrainfleetError
from trainfleet.training.launch.base import find
from trainfleet.training.launch.remote.follower import Message
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import start
from trainfleet.training.runtime.events import EventSink

ENDED = "ended"
"""The last event of a member: how its run ended."""


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


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the process; returns the exit code of the launch."""
    spec = MemberSpec.read(Path((arguments or sys.argv[1:])[0]))
    process.die_with(spec.parent)
    sink = EventSink(spec.address)
    view = Forward(sink, spec.cluster)
    try:
        outcome = start(spec.launch(), view=view)
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
