"""Reads what a real `pulumi preview`, `pulumi up` or `pulumi refresh` recorded.

The forms: JSON lines of engine events (`--event-log FILE`, or `--json` with
PULUMI_ENABLE_STREAMING_JSON_PREVIEW), the events of an update from Pulumi Cloud's API (`{"events": [...]}`),
and the digest of `pulumi preview --json` (one document with `steps`). Lines of other text, such as warnings
of the CLI, and a truncated end are tolerated and named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet import json_documents
from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.diff import recorded_shapes
from trainfleet.rehearsal.engine.engine_cli import Outcome, Violation, parse_event

_KINDS = (
    "resourcePreEvent",
    "resOutputsEvent",
    "summaryEvent",
    "preludeEvent",
    "diagnosticEvent",
    "stdoutEvent",
)
_FIX = "record one with: pulumi preview --event-log preview.jsonl, or: pulumi preview --json > preview.json"


@dataclass
class EventLog:
    """The contents of one recording."""

    events: list[dict[str, Any]] = field(default_factory=list)
    """Engine events in order, each with one key such as `resourcePreEvent`."""
    notes: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    """Why the recording does not contain the whole plan; empty if it does."""
    form: str = "event log"

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The metadata of all planned operations."""
        return [event["resourcePreEvent"]["metadata"] for event in self.events if "resourcePreEvent" in event]

    @property
    def before(self) -> list[dict[str, Any]]:
        """The resources as they are before the operations."""
        found: dict[str, dict[str, Any]] = {}
        for step in self.steps:
            if step.get("old"):
                found.setdefault(step["urn"], {**step["old"], "urn": step["urn"]})
        return list(found.values())

    @property
    def violations(self) -> list[Violation]:
        """The policy violations."""
        return self._outcome().violations

    @property
    def stack(self) -> str:
        """The name of the stack, from the first URN; empty if there is none."""
        return next((step["urn"].split("::")[0].rsplit(":", 1)[-1] for step in self.steps), "")

    @property
    def project(self) -> str:
        """The name of the project, from the first URN; empty if there is none."""
        return next((step["urn"].split("::")[1] for step in self.steps if "::" in step["urn"]), "")

    def errors(self) -> list[str]:
        """Return the error messages of the command."""
        return [text for _, text in self._outcome().errors]

    def _outcome(self) -> Outcome:
        outcome = Outcome("preview")
        for event in self.events:
            if "policyEvent" in event or "diagnosticEvent" in event:
                parse_event(event, outcome)
        return outcome


def read(file: Path) -> EventLog:
    """Read a recording.

    Raises:
        InputError: the file cannot be read, or contains neither events nor a digest.
    """
    text = _text(file)
    log = _digest(text) or _lines(text)
    if log is None:
        raise InputError("not a preview", [Problem(str(file), _why(text), _FIX)])
    if errors := log.errors():
        more = f" (and {len(errors) - 1} more errors)" if len(errors) > 1 else ""
        log.incomplete.append(f"the command failed: {' '.join(errors[0].split())[:300]}{more}")
    if not log.steps and not log.incomplete:
        log.notes.append("The recording contains no resources.")
    return log


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise InputError(
            "cannot read the preview", [Problem(str(file), error.strerror or str(error))]
        ) from error
    # PowerShell redirects output as UTF-16 with a byte order mark.
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return raw.decode(encoding, errors="replace")


def _why(text: str) -> str:
    if not text.strip():
        return "is empty"
    document = _json(text)
    if isinstance(document, dict) and ("deployment" in document or "checkpoint" in document):
        return "is the state of a stack, not a preview: pass it with --state"
    return "contains neither engine events nor the steps of `pulumi preview --json`"


def _json(text: str) -> Any:
    try:
        return json_documents.parse(text)
    except ValueError:
        return None


# ---- JSON lines


def _lines(text: str) -> EventLog | None:
    document = _json(text)
    if isinstance(document, dict) and isinstance(document.get("events"), list):
        log = _page(document)
    else:
        log = _event_lines(text.splitlines())
    if not log.events:
        return None
    if not log.incomplete and not any("summaryEvent" in event for event in log.events):
        log.incomplete.append("the log has no summary: it is truncated, or the command was interrupted")
    return log


def _page(document: Mapping[str, Any]) -> EventLog:
    """Return the events of a document of Pulumi Cloud's API."""
    log = EventLog([event for event in document["events"] if _is_event(event)])
    if broken := sum(_names_event(each) and not _is_event(each) for each in document["events"]):
        log.incomplete.append(f"{_count(broken)} of the document cannot be read")
    if document.get("continuationToken"):
        log.incomplete.append("the document is one page of several (it has a continuationToken)")
    return log


def _event_lines(lines: list[str]) -> EventLog:
    """Return the events of a log with one event a line."""
    log, broken, other = EventLog(), list[int](), list[tuple[int, str]]()
    for number, line in enumerate(lines, 1):
        event = _json(line)
        if _is_event(event):
            log.events.append(event)
        elif _names_event(event):
            broken.append(number)
        elif line.strip() and not (isinstance(event, dict) and "sequence" in event):
            other.append((number, line))
    if broken:
        log.incomplete.append(f"{_count(len(broken))} cannot be read, the first in line {broken[0]}")
    if other and other[-1][0] == len(lines) and other[-1][1].lstrip().startswith('{"sequence'):
        number, line = other.pop()
        log.incomplete.append(f"line {number} ends in the middle: the log is truncated")
    if other:
        number, line = other[0]
        count = "1 line is" if len(other) == 1 else f"{len(other)} lines are"
        log.notes.append(f"{count} not JSON and ignored, the first is line {number}: {line.strip()[:120]}")
    return log


def _names_event(value: Any) -> bool:
    """Whether a value has the name of an event, also if its parts are not those of one."""
    return isinstance(value, dict) and any(name in _KINDS or str(name).startswith("policy") for name in value)


def _is_event(value: Any) -> bool:
    if not _names_event(value) or not recorded_shapes.is_event(value):
        return False
    operations = [value[name] for name in ("resourcePreEvent", "resOutputsEvent") if name in value]
    return all(each and recorded_shapes.is_urn(each["metadata"]["urn"]) for each in operations)


def _count(events: int) -> str:
    return "1 event" if events == 1 else f"{events} events"


# ---- the digest


def _digest(text: str) -> EventLog | None:
    start = _document_start(text)
    if start < 0:
        return None
    log = EventLog(form="digest")
    try:
        _, end = json.JSONDecoder().raw_decode(text[start:])
        document = json_documents.parse(text[start : start + end])
    except (ValueError, RecursionError):
        steps = list(_steps_of_truncated(text[start:]))
        if not steps:
            return None
        document, end = {"steps": steps}, len(text)
        log.incomplete.append(f"the document ends in the middle: {len(steps)} complete steps are shown")
    if not isinstance(document, dict) or not _is_digest(document):
        return None
    outside = [line for line in (text[:start] + text[start + end :]).splitlines() if line.strip()]
    if outside:
        log.notes.append(
            f"{len(outside)} lines around the document are ignored, the first: {outside[0][:120]}"
        )
    log.events = [{"resourcePreEvent": {"metadata": _metadata(step)}} for step in document.get("steps") or ()]
    log.events += [
        {"diagnosticEvent": {"severity": each.get("severity"), "message": each.get("message", "")}}
        for each in _diagnostics(document)
    ]
    if any(step["op"] == "refresh" for step in log.steps):
        log.notes.append(
            "A digest does not contain what a refresh read: pass the file of --event-log to see what changed"
            " outside Pulumi."
        )
    return log


def _is_digest(document: Mapping[str, Any]) -> bool:
    steps = document.get("steps")
    if steps is None:
        return "changeSummary" in document and "deployment" not in document
    return isinstance(steps, list) and all(map(_is_step, steps))


def _is_step(step: Any) -> bool:
    return not recorded_shapes.problems(recorded_shapes.DigestStep, step) and recorded_shapes.is_urn(
        step["urn"]
    )


def _diagnostics(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    found, shape = document.get("diagnostics"), recorded_shapes.Diagnostic
    listed = found if isinstance(found, list) else []
    return [each for each in listed if not recorded_shapes.problems(shape, each)]


def _document_start(text: str) -> int:
    """Return where a document that spans several lines, or the whole text, begins; -1 if there is none."""
    place = 0
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("{"):
            is_event = _is_event(_json(line)) or '"sequence"' in line[:20]
            return -1 if is_event else place + line.index("{")
        place += len(line)
    return -1


def _steps_of_truncated(text: str) -> Iterator[dict[str, Any]]:
    """Yield the complete steps of a digest whose end is missing."""
    place = text.find('"steps"')
    place = text.find("[", place) + 1 if place >= 0 else 0
    decoder = json.JSONDecoder()
    while place > 0:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        try:
            step, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        if not _is_step(step):
            return
        yield step


def _metadata(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step of a digest as the metadata of an event."""
    old, new = step.get("oldState"), step.get("newState")
    token = str((new or old or {}).get("type") or step["urn"].split("::")[2].rsplit("$", 1)[-1])
    detailed = {
        path: {"diffKind": each.get("kind", ""), "inputDiff": each.get("inputDiff", False)}
        for path, each in (step.get("detailedDiff") or {}).items()
    }
    return {
        "op": step["op"],
        "urn": step["urn"],
        "type": token,
        **({"provider": step["provider"]} if "provider" in step else {}),
        "old": old,
        "new": new,
        "detailedDiff": detailed or None,
        "diffs": step.get("diffReasons") or [],
        "keys": step.get("replaceReasons") or [],
    }
