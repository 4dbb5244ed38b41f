"""The lines of a run's log, each once: events as documents, everything else as text."""

from __future__ import annotations

import contextlib
import json
from typing import Any

Line = dict[str, Any] | str


def parse(text: str) -> Line:
    """A line as the event that it holds, else unchanged."""
    if text.startswith('{"kind":'):
        with contextlib.suppress(ValueError):
            event = json.loads(text)
            if isinstance(event, dict) and isinstance(event.get("kind"), str):
                return event
    return text


class Once:
    """Passes each line of an attempt once, however often its log is read from the start."""

    def __init__(self) -> None:
        self._attempt: str | None = None
        self._passed = self._skip = 0

    def __call__(self, line: Line) -> bool:
        """Whether this line is new."""
        if isinstance(line, dict) and line["kind"] == "submitter":
            return True
        if isinstance(line, dict) and line["kind"] == "attempt":
            same = line["started"] == self._attempt
            self._attempt, self._skip = line["started"], self._passed if same else 0
            self._passed = self._passed if same else 0
            return not same
        if self._skip:
            self._skip -= 1
            return False
        self._passed += 1
        return True
