"""Runs the engine's command line and parses its event log: operations, policy violations and errors.

Every command runs in its own process group. An interrupted rehearsal ends the whole group.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.rehearsal.engine.sandbox import Sandbox, unwritable
from trainfleet.toolchain import kill_tree, spawn

POLL = 0.05
QUIET_OPS = ("same", "read", "refresh")


@dataclass(frozen=True)
class Planned:
    """One resource in a step: the operation and the new state (None for a delete)."""

    op: str
    urn: str
    token: str
    new: dict[str, Any] | None
    keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The logical name."""
        return self.urn.rsplit("::", 1)[-1]


@dataclass(frozen=True)
class Violation:
    """A policy violation of one resource."""

    policy: str
    urn: str
    message: str
    level: str


@dataclass
class Outcome:
    """The result of one engine command."""

    command: str
    code: int = 0
    seconds: float = 0.0
    steps: list[Planned] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Diagnostics of severity `error`: URN (may be empty) and text."""
    violations: list[Violation] = field(default_factory=list)
    policies_passed: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    output: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.code == 0

    def ops(self) -> dict[str, str]:
        """Return the operation on each changed resource; a replacement counts once, as `replace`."""
        result: dict[str, str] = {}
        for step in self.steps:
            if step.op in QUIET_OPS:
                continue
            op = "replace" if "replace" in step.op else step.op
            if result.get(step.urn) != "replace":
                result[step.urn] = op
        return result

    def count(self) -> dict[str, int]:
        """Return the number of resources per operation."""
        counts: dict[str, int] = {}
        for op in self.ops().values():
            counts[op] = counts.get(op, 0) + 1
        return counts


Progress = Callable[[str, int], None]


class Runner:
    """Runs engine commands in one sandbox. `progress` is called for every finished resource."""

    def __init__(
        self, engine: Path, sandbox: Sandbox, environment: dict[str, str], progress: Progress | None = None
    ) -> None:
        self.engine, self.sandbox, self.progress = engine, sandbox, progress
        self.environment = {**sandbox.environment, **environment}
        self.count = 0
        self.child: subprocess.Popen[bytes] | None = None

    def init(self) -> None:
        """Create the empty stack."""
        outcome = self.run("stack", "init", self.sandbox.stack, events=False)
        if not outcome.ok:
            raise TrainfleetError(f"the engine could not create a stack: {outcome.output.strip()[-600:]}")

    def kill(self) -> None:
        """Kill the running engine without any cleanup, like a power loss. Callable from any thread."""
        if self.child is not None:
            self.child.kill()

    def run(self, *arguments: str, events: bool = True, checkpoints: bool = False) -> Outcome:
        """Run one command and wait for it to exit.

        With `checkpoints`, the engine writes the state after each resource, which is its default.

        Raises:
            InputError: the sandbox folder is not writable.
        """
        self.count += 1
        log, text = (
            self.sandbox.file(f"events-{self.count}.jsonl"),
            self.sandbox.file(f"output-{self.count}.txt"),
        )
        command = [str(self.engine), *arguments, "--non-interactive", "--color", "never"]
        if events:
            command += ["--stack", self.sandbox.stack, "--event-log", str(log)]
        outcome = Outcome(" ".join(arguments))
        environment = {
            name: value
            for name, value in self.environment.items()
            if not checkpoints or name != "PULUMI_SKIP_CHECKPOINTS"
        }
        started = time.monotonic()
        try:
            log.touch()
            with text.open("wb") as output, log.open("rb") as reader:
                child = spawn(
                    command,
                    cwd=self.sandbox.project,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self.child = child
                try:
                    self._follow(child, reader, outcome)
                finally:
                    kill_tree(child)
        except OSError as error:
            raise unwritable(error, self.sandbox.folder) from error
        outcome.code, outcome.seconds = child.returncode, time.monotonic() - started
        outcome.output = text.read_text(errors="replace")
        if not outcome.ok and "no space left on device" in outcome.output:
            raise unwritable(OSError(28, "no space left on device"), self.sandbox.folder)
        return outcome

    def _follow(self, child: subprocess.Popen[bytes], reader: Any, outcome: Outcome) -> None:
        rest = b""
        while True:
            ended = child.poll() is not None
            rest += reader.read()
            *lines, rest = rest.split(b"\n")
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):
                    parse_event(json.loads(line), outcome, self.progress)
            if ended:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL)


def parse_event(event: dict[str, Any], outcome: Outcome, progress: Progress | None = None) -> None:
    """Add what an event of the engine's log says to an outcome."""
    if made := event.get("resourcePreEvent"):
        outcome.steps.append(_planned(made["metadata"]))
    elif done := event.get("resOutputsEvent"):
        if progress:
            progress(done["metadata"]["op"], 1)
    elif failed := event.get("resOpFailedEvent"):
        outcome.failed.append(failed["metadata"]["urn"])
    elif diagnostic := event.get("diagnosticEvent"):
        if diagnostic.get("severity") == "error":
            outcome.errors.append((diagnostic.get("urn") or "", _plain_text(diagnostic["message"])))
    elif policy := event.get("policyEvent"):
        outcome.violations.append(
            Violation(
                policy["policyName"],
                policy.get("resourceUrn") or "",
                _without_description(_plain_text(policy["message"])),
                policy["enforcementLevel"],
            )
        )
    elif summary := event.get("summaryEvent"):
        outcome.changes = {
            key: value for key, value in (summary.get("resourceChanges") or {}).items() if value
        }
    for name in ("policyAnalyzeSummaryEvent", "policyAnalyzeStackSummaryEvent"):
        outcome.policies_passed += len((event.get(name) or {}).get("passed") or ())


def _planned(metadata: dict[str, Any]) -> Planned:
    return Planned(
        metadata["op"],
        metadata["urn"],
        metadata["type"],
        metadata.get("new"),
        tuple(metadata.get("diffs") or metadata.get("keys") or ()),
    )


def _plain_text(message: str) -> str:
    """Return an engine message without its color markup."""
    import re

    return re.sub(r"<\{%.*?%\}>", "", message).strip()


def _without_description(message: str) -> str:
    """Return a violation message without the policy description, which the engine puts on the first line."""
    first, _, rest = message.partition("\n")
    return " ".join((rest or first).split())


def resources_of(state: Path) -> list[dict[str, Any]]:
    """Return the resources in a state file (the engine's export format); none if the file does not exist."""
    return list(_latest(state).get("resources") or [])


def pending_of(state: Path) -> list[dict[str, Any]]:
    """Return the resources whose create was started and never confirmed (`pending_operations`)."""
    return [
        operation["resource"]
        for operation in _latest(state).get("pending_operations") or ()
        if operation["type"] == "creating"
    ]


def _latest(state: Path) -> dict[str, Any]:
    if not state.is_file():
        return {}
    document = json.loads(state.read_text())
    checkpoint = document.get("checkpoint", document)
    # `pulumi state` commands capitalize the key.
    return checkpoint.get("latest") or checkpoint.get("Latest") or {}
