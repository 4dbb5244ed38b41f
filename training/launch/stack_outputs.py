"""Finds a platform's outputs by what `--stack` was given: a file, or the name of a Pulumi stack, whose
outputs are asked for.

Used by the launchers that take several platforms. Easy to get wrong: a stack that was never applied has
outputs too, an empty
group, and one without `--show-secrets` has a kubeconfig that reads `[secret]`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.infra.outputs.contract import read_outputs
from trainfleet.training.launch.platform_outputs import Place, load_place

TIMEOUT_S = 120


def load_stack(text: str) -> Place:
    """The platform of `--stack TEXT`.

    Raises:
        InputError: neither a file with outputs nor a stack that was applied.
        MissingToolError: it is a name, and there is no pulumi to ask.
    """
    if Path(text).is_file():
        return load_place(Path(text))
    if text.endswith(".json") or "/" in text:
        how = "write it with: pulumi stack output --json --show-secrets > FILE"
        raise InputError("cannot read a platform's outputs", [Problem(text, "there is no such file", how)])
    return Place(read_outputs(_ask_pulumi(text)), Path(text))


def load_stacks(texts: Iterable[str]) -> list[Place]:
    """The platforms of all `--stack` options, each once.

    Raises:
        InputError: every one that cannot be read, at once.
    """
    places: list[Place] = []
    problems: list[Problem] = []
    for text in dict.fromkeys(texts):
        try:
            places.append(load_stack(text))
        except InputError as error:
            problems += [
                Problem(
                    each.where if text in each.where else f"{text} {each.where}".strip(), each.what, each.fix
                )
                for each in error.problems
            ]
    if problems:
        raise InputError("cannot read every platform's outputs", problems)
    if not places:
        raise InputError(
            "no platform is named",
            [Problem("--stack", "is missing", "--stack OUTPUTS.json, or the name of a Pulumi stack")],
        )
    return places


def _ask_pulumi(stack: str) -> dict[str, object]:
    """What the stack `stack` of the project in this folder has as outputs."""
    pulumi = shutil.which("pulumi")
    if pulumi is None:
        fix = "give a file instead: pulumi stack output --json --show-secrets > FILE, where pulumi is"
        raise MissingToolError(
            f"cannot ask for the outputs of the stack {stack}", [Problem("pulumi", "is not on the path", fix)]
        )
    command = [pulumi, "stack", "output", "--json", "--show-secrets", "--non-interactive", "--stack", stack]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            "cannot read a platform's outputs",
            [Problem(stack, f"pulumi did not answer within {TIMEOUT_S} s")],
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "pulumi failed").splitlines()[-1]
        raise InputError(
            "cannot read a platform's outputs",
            [Problem(stack, said, "is this the project's folder, and are you logged in?")],
        )
    document = json.loads(done.stdout)
    if not document:
        what = "has no outputs: it was never applied, or was destroyed"
        raise InputError(
            "cannot read a platform's outputs", [Problem(stack, what, f"pulumi up --stack {stack}")]
        )
    return dict(document)
