"""Reads what a task writes, far away, out of SkyPilot's log: the run's events between everybody's words.

Used by `trainfleet.training.launch.sky.follow`. Easy to get wrong: SkyPilot puts `(head, rank=0, pid=1)` and
colours before a line of several pods,
a line may come in pieces, and a log that is fetched again after a broken connection tells everything twice.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

MARK = '{"kind": "'
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ONCE = ("interval", "event", "result", "error", "crash", "exit", "checkpoint")
"""Kinds that mean the same when they are told a second time."""


class EventStream(io.TextIOBase):
    """A stream that SkyPilot writes a log to; each event is handed to `hear`, each other line to `other`."""

    def __init__(self, hear: Callable[[dict[str, Any]], Any], other: Callable[[str], Any]) -> None:
        super().__init__()
        self._hear, self._other = hear, other
        self._rest = ""
        self._seen: set[str] = set()
        self.exit_code: int | None = None

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def finish(self) -> None:
        """Read what is left without a newline."""
        rest, self._rest = self._rest, ""
        self._line(rest)

    def _line(self, line: str) -> None:
        at = line.find(MARK)
        event = _event(line[at:]) if at >= 0 else None
        if event is None:
            if text := COLOURS.sub("", line).strip():
                self._other(text)
            return
        if event["kind"] in ONCE:
            told = line[at:]
            if told in self._seen:
                return
            self._seen.add(told)
        if event["kind"] == "exit":
            self.exit_code = int(event.get("code", 1))
            return
        self._hear(event)


def _event(text: str) -> dict[str, Any] | None:
    try:
        event = json.loads(COLOURS.sub("", text))
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None


NOTES = (
    (
        re.compile(r"Launching (?:on|an? ).*?(?:Kubernetes|k8s)[ (/]+([\w.@/:-]*\w)", re.IGNORECASE),
        "asking {0} for pods",
    ),
    (re.compile(r"Cluster launched"), "pods are up; setting up SkyPilot in them"),
    (re.compile(r"Job submitted, ID: (\d+)"), "the task is queued as job {0}"),
    (re.compile(r"Failed to acquire resources in (.+?)(?: for|\.|$)"), "no room in {0}"),
    (re.compile(r"Trying other potential resources"), "trying the next place"),
    (re.compile(r"Recovering|RECOVERING"), "pods are gone: SkyPilot looks for a place to go on"),
)


def note_of(line: str) -> str | None:
    """SkyPilot's line in the words of a progress display, or nothing where it is not news."""
    for pattern, words in NOTES:
        if found := pattern.search(line):
            return words.format(*found.groups())
    return None


REASONS = (
    (
        re.compile(r"exceeded quota: ([\w.-]+)[^,]*, requested: ([^,]+)", re.IGNORECASE),
        "the quota `{0}` has no room for {1}",
    ),
    (
        re.compile(r"(ErrImagePull|ImagePullBackOff|InvalidImageName)"),
        "the image cannot be pulled ({0}): is it there, and may the nodes read it?",
    ),
    (re.compile(r"untolerated taint \{([^}]+)\}"), "no node without the taint {0} has room"),
    (re.compile(r"Insufficient ([\w./-]*\w)"), "no node has enough {0} left"),
    (
        re.compile(r"satisfying the request: .*?\((?:.*?\{[^}]*\}, )?cpus=([\d.]+), mem=([\d.]+)"),
        "no node there has {0} processors and {1} GiB for one pod",
    ),
    (
        re.compile(r"didn't match Pod's node affinity/selector"),
        "no node of that pool is there, and none came in time",
    ),
    (
        re.compile(r"(?:Unauthorized|\(401\))"),
        "the context's token is no longer valid: `trainfleet sky setup` writes a new one",
    ),
    (re.compile(r"\(403\)|[Ff]orbidden"), "the launcher's account may not do that there"),
    (
        re.compile(r"(?:Max retries exceeded|Connection refused|timed out|No route to host)"),
        "the cluster does not answer",
    ),
)


def reasons_in(text: str) -> list[str]:
    """What a failure's text says in plain words, each once."""
    found = [words.format(*hit.groups()) for pattern, words in REASONS for hit in pattern.finditer(text)]
    return list(dict.fromkeys(found))
