"""Applies exactly the plan that was reviewed, and says how to continue after an apply that failed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainfleet.ci.locks import holders
from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.rehearsal.diff.plan_file import digest_of, read_plan

_LOCKED = "currently locked by"
_VIOLATES = "violates plan"


def pulumi() -> str:
    """Return the Pulumi command line: TRAINFLEET_PULUMI, else the one on PATH.

    Raises:
        MissingToolError: there is none.
    """
    found = os.environ.get("TRAINFLEET_PULUMI") or shutil.which("pulumi")
    if not found:
        problem = Problem("pulumi", "is not on the path", "install Pulumi 3.200 or newer")
        raise MissingToolError("cannot apply without Pulumi", [problem])
    return found


def check_digest(plan: Path, sha256: str) -> None:
    """Check that a plan is the one whose digest was reviewed.

    Raises:
        InputError: it is another file, or no plan.
    """
    found = digest_of(plan)
    if found != sha256.strip().lower():
        raise InputError(
            "this is not the reviewed plan",
            [
                Problem(
                    str(plan),
                    f"has the SHA-256 {found}, not {sha256}",
                    "apply the reviewed file, or review this one",
                )
            ],
        )
    read_plan(plan)


def apply(stack: str, plan: Path, sha256: str, policy_packs: Sequence[Path] = ()) -> None:
    """Run `pulumi up --plan` for a plan whose digest was reviewed; print what the engine prints.

    Raises:
        InputError: the plan has another digest.
        MissingToolError: Pulumi is not installed.
        TrainfleetError: an earlier apply left operations open, or this one failed; says how to continue.
    """
    check_digest(plan, sha256)
    program = pulumi()
    if operations := open_operations(program, stack):
        # NOTE: the state of a running apply has open operations, too: to forget them would lose resources.
        if locks := _locks(program, stack, operations):
            raise TrainfleetError(f"nothing was applied to {stack}", locks)
        raise TrainfleetError(
            f"an earlier apply of {stack} was interrupted: nothing was applied now",
            _problems(stack, operations),
        )
    packs = [argument for pack in policy_packs for argument in ("--policy-pack", str(pack))]
    command = [program, "up", "--stack", stack, "--plan", str(plan), "--yes", "--skip-preview", "--refresh"]
    code, output = _show([*command, "--non-interactive", *packs])
    if code:
        summary = f"the apply of {stack} failed; what is done stays done"
        raise TrainfleetError(summary, reasons(stack, output) or _left(program, stack) or [_again(stack)])


def _left(program: str, stack: str) -> list[Problem]:
    """Return what an engine that was killed leaves: its lock, and operations whose result is not known."""
    operations = open_operations(program, stack)
    return [*_locks(program, stack, operations), *_problems(stack, operations)]


def _locks(program: str, stack: str, operations: Sequence[dict[str, Any]]) -> list[Problem]:
    projects = {str(each["resource"]["urn"]).split("::")[1] for each in operations}
    return [_locked(stack, each) for project in projects for each in holders(program, project, stack)]


def reasons(stack: str, output: str) -> list[Problem]:
    """Return what the engine's output says about why nothing more was applied, with how to continue."""
    if _LOCKED in output:
        holder = re.search(r"created by .*", output)
        return [_locked(stack, holder.group(0).strip() if holder else "another apply runs")]
    if _VIOLATES in output:
        fix = "plan and review again: start the workflow or pipeline again, or pulumi preview --save-plan"
        return [Problem(stack, "changed since the plan was reviewed: the plan does not fit any more", fix)]
    return []


def _locked(stack: str, holder: str) -> Problem:
    return Problem(
        stack,
        f"is locked: {holder}",
        f"wait for that apply; if its job is gone: pulumi cancel --stack {stack} --yes"
        f" ({_in_ci(stack, 'cancel')}), then plan again",
    )


def _in_ci(stack: str, command: str) -> str:
    """How the generated workflows do it."""
    if os.environ.get("GITLAB_CI"):
        return f"CI: the job `continue-{stack}` of a pipeline that is started with COMMAND={command}"
    return f"CI: the workflow `continue` with `{command}`"


def _again(stack: str) -> Problem:
    fix = "fix the cause that the engine names, then plan again: the new plan has only what is missing"
    return Problem(stack, "is applied in part; the state has what exists", fix)


def open_operations(program: str, stack: str) -> list[dict[str, Any]]:
    """Return the operations that have begun, and whose result is not in the state.

    Raises:
        TrainfleetError: the state cannot be read.
    """
    done = subprocess.run(
        [program, "stack", "export", "--stack", stack, "--non-interactive"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "pulumi failed").splitlines()[-1]
        fix = f"pulumi login, and once: pulumi stack init {stack}"
        raise TrainfleetError(f"cannot read the state of {stack}", [Problem(stack, last, fix)])
    deployment = json.loads(done.stdout).get("deployment") or {}
    return list(deployment.get("pending_operations") or ())


def _problems(stack: str, operations: Iterable[dict[str, Any]]) -> Iterable[Problem]:
    for operation in operations:
        urn = operation["resource"]["urn"]
        kind, name = operation["type"], urn.rsplit("::", 1)[-1]
        refresh = f"pulumi refresh --stack {stack} --yes --skip-preview"
        fix = f"{refresh} ({_in_ci(stack, 'refresh')})"
        if kind == "creating":
            fix = (
                f"look whether it exists in the cloud. If not: {refresh} --clear-pending-creates"
                f" ({_in_ci(stack, 'clear-pending-creates')}). If it does, with its id:"
                f" {refresh} --import-pending-creates '{urn}' --import-pending-creates ID"
            )
        yield Problem(name, f"was {kind} when an apply ended, and the state does not know the result", fix)


def _show(command: Sequence[str]) -> tuple[int, str]:
    """Run a command, copy its output to stderr line by line, and return its code and output."""
    lines = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            sys.stderr.write(line)
            sys.stderr.flush()
            lines.append(line)
    return child.returncode, "".join(lines)
