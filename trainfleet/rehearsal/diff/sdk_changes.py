"""What differs between two versions of a provider's SDK for the types that a stack uses."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake

READER = Path(__file__).with_name("sdk_reader.py")
_ALIKE = 0.6
Inputs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SdkChange:
    """A property of a type that differs: new, removed, renamed, newly required or no longer required."""

    type: str
    property: str
    """Empty if the whole type is new or removed."""
    what: str


class SdkReader:
    """Reads the SDKs of one side in a process of its own."""

    def __init__(self, overlay: Path | None) -> None:
        path = os.pathsep.join(filter(None, (str(overlay or ""), os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            [sys.executable, str(READER)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lock = threading.Lock()
        self._known: dict[str, Inputs | None] = {}

    def inputs(self, token: str) -> Inputs | None:
        """Return the inputs of a type by their wire names; None if the SDK lacks it or cannot be read."""
        with self._lock:
            if token not in self._known:
                self._known[token] = self._ask(token)
            return self._known[token]

    def _ask(self, token: str) -> Inputs | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{token}\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or "null")
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) and "error" not in answer else None

    def accepts(self, token: str, mistakes: list[Mistake]) -> list[Mistake]:
        """Return the mistakes that are not only due to the installed SDK being another version.

        The simulated clouds check with the installed SDK: a property that only this side's SDK has is not a
        mistake, and neither is a missing one that this side's SDK does not require.
        """
        inputs = self.inputs(token)
        if inputs is None:
            return mistakes
        return [mistake for mistake in mistakes if not _of_the_version(mistake, inputs)]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _of_the_version(mistake: Mistake, inputs: Inputs) -> bool:
    first = mistake.property.split(".")[0]
    if mistake.path == "type":
        return True
    if mistake.what == "unknown property":
        return mistake.property in inputs
    if mistake.what == "missing required property" and "." not in mistake.property:
        return not (inputs.get(first) or {}).get("required")
    return False


@contextlib.contextmanager
def reader(overlay: Path | None) -> Iterator[SdkReader]:
    """Read an environment's SDKs in the block."""
    found = SdkReader(overlay)
    try:
        yield found
    finally:
        found.close()


def sdk_changes(tokens: Iterable[str], before: SdkReader, after: SdkReader) -> list[SdkChange]:
    """Return what differs for some types, sorted by type."""
    return [
        change
        for token in sorted(set(tokens))
        for change in changes_of(token, before.inputs(token), after.inputs(token))
    ]


def changes_of(token: str, before: Inputs | None, after: Inputs | None) -> list[SdkChange]:
    """Return what differs between the inputs of one type."""
    if before is None or after is None:
        if (before is None) == (after is None):
            return []
        return [SdkChange(token, "", "the type is new" if before is None else "the type is removed")]
    gone, new = [key for key in before if key not in after], [key for key in after if key not in before]
    found, renamed = [], set()
    for old in gone:
        now = _renamed(old, before, {key: after[key] for key in new if key not in renamed})
        if now:
            renamed.add(now)
            found.append(SdkChange(token, old, f"renamed to `{now}`"))
        else:
            found.append(SdkChange(token, old, "removed"))
    for key in new:
        if after[key]["required"]:
            found.append(SdkChange(token, key, "new and required"))
        elif key not in renamed:
            found.append(SdkChange(token, key, "new"))
    for key, value in after.items():
        if key in before and value["required"] != before[key]["required"]:
            found.append(
                SdkChange(token, key, "newly required" if value["required"] else "no longer required")
            )
    return found


def _renamed(old: str, before: Inputs, new: Inputs) -> str:
    """Return the new property with a similar name and the same type."""
    same = [key for key, value in new.items() if value["type"] == before[old]["type"]]
    return next(iter(difflib.get_close_matches(old, same, 1, _ALIKE)), "")
