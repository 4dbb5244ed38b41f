"""Explains a failed step: which resource, which property, and the fix.

Sources, in order of preference: inputs that Check rejected, the location of a program failure, functions that
are not simulated, and the engine's own errors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from trainfleet.errors import Problem
from trainfleet.rehearsal.accepted import FILE, snippets
from trainfleet.rehearsal.engine.engine_cli import Outcome, Violation
from trainfleet.rehearsal.engine.language import REFERENCES
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.steps.missing import MORE, missing_stacks
from trainfleet.suggestions import did_you_mean


def problems(outcome: Outcome, cloud: Cloud, failure_file: Path) -> list[Problem]:
    """Return why a command failed; at least one problem."""
    found = [
        Problem(f"{resource_of(urn)} {mistake.path}", mistake.what, mistake.fix_with_source)
        for urn, mistakes in sorted(cloud.mistakes.items())
        for mistake in mistakes
    ]
    failure = json.loads(failure_file.read_text()) if failure_file.is_file() else None
    if cloud.missing:
        found.append(_unanswered(cloud))
    if not found and failure:
        found += MORE.get(failure["kind"], _programs)(failure)
    found += [
        Problem(resource_of(violation.urn), f"policy {violation.policy}: {violation.message}")
        for violation in mandatory(outcome)
    ]
    if not found:
        reported = [
            Problem(resource_of(urn), _sentence(text))
            for urn, text in outcome.errors
            if text and text not in _EMPTY
        ]
        found = (
            missing_stacks(reported, cloud.accepted, failure_file.with_name(REFERENCES))
            or list(dict.fromkeys(reported))
            or [
                Problem(
                    outcome.command, outcome.output.strip()[-800:] or f"ended with exit code {outcome.code}"
                )
            ]
        )
    return found


def _unanswered(cloud: Cloud) -> Problem:
    """Return one problem for everything that only the project knows, with rows to paste."""
    asked = [
        f"{row.get('function') or row.get('type')} {row.get('name', '')}".strip()
        + (f" ({reason})" if reason else "")
        for row, reason in cloud.missing.values()
    ]
    rows = snippets(("answer", row) for row, _ in cloud.missing.values())
    return Problem(
        FILE,
        f"the simulated clouds have no answer to: {'; '.join(asked)}",
        f"add what is true in your account, as in:\n\n{rows}\n",
    )


_EMPTY = ("update failed", "preview failed", "destroy failed", "refresh failed")


def mandatory(outcome: Outcome) -> list[Violation]:
    """Return the violations of mandatory policies, which stop an update."""
    return list(
        dict.fromkeys(violation for violation in outcome.violations if violation.level == "mandatory")
    )


def resource_of(urn: str) -> str:
    """Return the type and name in a URN, for example `aws:eks/cluster:Cluster prod-eks`."""
    parts = urn.split("::")
    return f"{parts[-2].rsplit('$', 1)[-1]} {parts[-1]}" if len(parts) >= 4 else urn


def _programs(failure: dict[str, str]) -> list[Problem]:
    return [_program(failure)]


def _program(failure: dict[str, str]) -> Problem:
    what = (
        f"{failure['kind']}: {failure['message']}"
        if failure["kind"] not in ("InputError", "TrainfleetError")
        else failure["message"]
    )
    resource, prop = failure.get("resource", ""), failure.get("property", "")
    if prop:
        owner = f"{failure.get('type', '')} {resource}".strip()
        what = (
            f"{owner or failure['kind']} has no property `{prop}`"
            if "Missing" not in failure["message"]
            else f"{owner}: required property `{prop}` is missing"
        )
        what += f" (in: {failure['code']})" if failure.get("code") else ""
    elif resource:
        what = f"{resource}: {what}"
    known = [name for name in failure.get("known", "").split(",") if name]
    return Problem(failure["where"], what, did_you_mean(prop, known) if prop and known else "")


def _sentence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", " ".join(lines))[:1200]
