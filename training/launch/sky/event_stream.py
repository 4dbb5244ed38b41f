"""Extracts a run's events from SkyPilot's log.

SkyPilot prefixes the lines of several pods with `(head, rank=0, pid=1)` and colors. A line may arrive in
pieces, and a log that is fetched again after a lost connection repeats everything.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

MARK = '{"kind": "'
_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ONCE = ("interval", "event", "result", "error", "crash", "exit", "checkpoint")
"""Kinds whose repetitions are dropped."""


def without_colors(text: str) -> str:
    """A text without the escape codes of a terminal."""
    return _COLORS.sub("", text)


class EventStream(io.TextIOBase):
    """A stream for SkyPilot's log; calls `on_event` with each event and `on_line` with each other line."""

    def __init__(self, on_event: Callable[[dict[str, Any]], Any], on_line: Callable[[str], Any]) -> None:
        super().__init__()
        self._on_event, self._on_line = on_event, on_line
        self._rest = ""
        self._seen: set[str] = set()
        self.exit_code: int | None = None

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Handle the complete lines."""
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def finish(self) -> None:
        """Handle the rest, which has no newline."""
        rest, self._rest = self._rest, ""
        self._line(rest)

    def _line(self, line: str) -> None:
        at = line.find(MARK)
        event = _event(line[at:]) if at >= 0 else None
        if event is None:
            if text := without_colors(line).strip():
                self._on_line(text)
            return
        if event["kind"] in ONCE:
            if line[at:] in self._seen:
                return
            self._seen.add(line[at:])
        if event["kind"] == "exit":
            self.exit_code = int(event.get("code", 1))
            return
        self._on_event(event)


def _event(text: str) -> dict[str, Any] | None:
    try:
        event = json.loads(without_colors(text))
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None


NOTES = (
    (
        re.compile(r"Launching (?:on|an? ).*?(?:Kubernetes|k8s)[ (/]+([\w.@/:-]*\w)", re.IGNORECASE),
        "requesting pods from {0}",
    ),
    (re.compile(r"Cluster launched"), "pods are up; setting up SkyPilot in them"),
    (re.compile(r"Job submitted, ID: (\d+)"), "the task is queued as job {0}"),
    (re.compile(r"Failed to acquire resources in (.+?)(?: for|\.|$)"), "no capacity in {0}"),
    (re.compile(r"Trying other potential resources"), "trying the next pool"),
    (re.compile(r"Recovering|RECOVERING"), "pods were lost: SkyPilot looks for a place to resume"),
)


def note_of(line: str) -> str | None:
    """A line of SkyPilot's as a progress note; None if it is not news."""
    for pattern, template in NOTES:
        if found := pattern.search(line):
            return template.format(*found.groups())
    return None


DENIED = "permission denied to the launcher's account"
REASONS = (
    (
        re.compile(r"exceeded quota: ([\w.-]+)[^,]*, requested: ([^,]+)", re.IGNORECASE),
        "the quota `{0}` does not allow {1} more",
    ),
    (
        re.compile(r"(ErrImagePull|ImagePullBackOff|InvalidImageName)"),
        "the image cannot be pulled ({0}): does it exist, and may the nodes read it?",
    ),
    (re.compile(r"untolerated taint \{([^}]+)\}"), "no node without the taint {0} has capacity"),
    (re.compile(r"Insufficient ([\w./-]*\w)"), "no node has enough {0} left"),
    (
        re.compile(r"satisfying the request: .*?\((?:.*?\{[^}]*\}, )?cpus=([\d.]+), mem=([\d.]+)"),
        "no node has {0} CPUs and {1} GiB for one pod",
    ),
    (
        re.compile(r"didn't match Pod's node affinity/selector"),
        "the pool has no node, and none was added in time",
    ),
    (
        re.compile(r"didn't match pod affinity rules"),
        "the node group of the run's first worker has no free node",
    ),
    (
        re.compile(r"(?:Unauthorized|\(401\))"),
        "the context's token is no longer valid: `trainfleet sky setup` writes a new one",
    ),
    (
        re.compile(r'violates PodSecurity \\?"(\w+):'),
        "the namespace's Pod Security level `{0}` forbids SkyPilot's pods, which need `baseline`",
    ),
    (re.compile(r"\(403\)|[Ff]orbidden"), DENIED),
    (
        re.compile(r"(?:Max retries exceeded|Connection refused|timed out|No route to host)"),
        "the cluster does not answer",
    ),
)


def reasons_in(text: str) -> list[str]:
    """The known reasons in a failure's text, in plain words, each once."""
    found = [reason.format(*hit.groups()) for pattern, reason in REASONS for hit in pattern.finditer(text)]
    # Admission answers 403 too, and then another reason says what it rejects.
    return [each for each in dict.fromkeys(found) if each != DENIED or set(found) == {DENIED}]
