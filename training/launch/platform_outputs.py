"""The outputs of a launch's platforms: from a file, a Pulumi stack, or options alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, load_outputs, partly_known, read_outputs
from trainfleet.training.stores import NotFoundError, is_remote, open_store

__all__ = [
    "POOL_FACTS",
    "NamedPlatform",
    "PlatformOutputs",
    "external_cluster",
    "load_platform",
    "load_platforms",
]

POOL_FACTS = ("name", "accelerator", "per_node", "max_nodes", "instance_type", "spot", "usd_per_hour")
"""What run.json keeps of a pool. `usd_per_hour` is a node's catalogue price, None where it is unknown."""
TIMEOUT_S = 120
UNREADABLE = "cannot read a platform's outputs"


@dataclass(frozen=True)
class NamedPlatform:
    """A platform's outputs, and the file or stack name that they were read from."""

    outputs: PlatformOutputs
    source: Path

    @property
    def name(self) -> str:
        """The name under which a plan shows it: its file's, or its stack's."""
        return self.source.stem if self.source.suffix == ".json" else self.source.name

    def runs_folder(self) -> str:
        """The folder or URL of the platform's runs: on the clouds the only place where training may write."""
        return self.outputs.bucket_url.removeprefix("file://").rstrip("/")

    def facts(self) -> dict[str, Any]:
        """What run.json keeps of the platform."""
        outputs = self.outputs
        return {
            "name": outputs.name,
            "cloud": outputs.cloud,
            "region": outputs.region,
            "environment": outputs.environment,
            "contract_version": outputs.contract_version,
            "trainfleet_version": outputs.trainfleet_version,
            "bucket_url": outputs.bucket_url,
            "pools": [pool.model_dump(include=set(POOL_FACTS)) for pool in outputs.pools],
        }


def load_platform(text: str) -> NamedPlatform:
    """The platform of `--stack TEXT`: a file with outputs, its URL, or the name of a Pulumi stack.

    Raises:
        InputError: no such file or object, not outputs, an unsupported version, or a stack
            that was never applied.
        MissingToolError: TEXT is a stack's name, and pulumi is not installed.
    """
    if is_remote(text):
        return NamedPlatform(read_outputs(_published(text)), Path(text.rpartition("/")[2]))
    path = Path(text)
    if path.is_file():
        return NamedPlatform(load_outputs(path), path)
    if text.endswith(".json") or "/" in text:
        fix = "write it with: pulumi stack output --json --show-secrets > FILE"
        raise InputError(UNREADABLE, [Problem(text, "there is no such file", fix)])
    return NamedPlatform(read_outputs(_stack_outputs(text)), path)


def load_platforms(texts: Iterable[str]) -> list[NamedPlatform]:
    """The platforms of all `--stack` options, each once.

    Raises:
        InputError: none is named, or some cannot be read: all of those at once.
    """
    platforms: list[NamedPlatform] = []
    problems: list[Problem] = []
    for text in dict.fromkeys(texts):
        try:
            platforms.append(load_platform(text))
        except InputError as error:
            problems += [_named(text, each) for each in error.problems]
    if problems:
        raise InputError("cannot read every platform's outputs", problems)
    if not platforms:
        fix = "--stack OUTPUTS.json, or the name of a Pulumi stack"
        raise InputError("no platform is named", [Problem("--stack", "is missing", fix)])
    return platforms


def external_cluster(context: str, namespace: str, image: str, storage: str) -> PlatformOutputs:
    """A cluster that no stack describes, as the contract would describe it.

    What is unknown is empty: such a cluster has no GPU pools, queue, cloud identity or prices.
    """
    return partly_known(
        context, "local", kube_context=context, namespace=namespace, image=image, bucket_url=storage
    )


def _named(text: str, problem: Problem) -> Problem:
    where = problem.where if text in problem.where else f"{text} {problem.where}".strip()
    return Problem(where, problem.what, problem.fix)


def _published(url: str) -> dict[str, Any]:
    """The outputs that `trainfleet ci publish` wrote to a bucket."""
    folder, _, name = url.rpartition("/")
    try:
        found = json.loads(open_store(folder).read(name))
    except NotFoundError as error:
        fix = "write it with: trainfleet ci publish STACK --to BUCKET"
        raise InputError(UNREADABLE, [Problem(url, "there is no such object", fix)]) from error
    except ValueError as error:
        raise InputError(UNREADABLE, [Problem(url, f"is not JSON: {error}")]) from error
    if not isinstance(found, dict):
        raise InputError(UNREADABLE, [Problem(url, "is not the outputs of a platform")])
    return found


def _stack_outputs(stack: str) -> dict[str, object]:
    """The outputs of a stack of the Pulumi project in this folder."""
    pulumi = shutil.which("pulumi")
    if pulumi is None:
        fix = "on a machine with pulumi: pulumi stack output --json --show-secrets > FILE; then --stack FILE"
        problem = Problem("pulumi", "is not on the path", fix)
        raise MissingToolError(f"cannot read the outputs of the stack {stack}", [problem])
    # Without --show-secrets the kubeconfig reads `[secret]`.
    command = [pulumi, "stack", "output", "--json", "--show-secrets", "--non-interactive", "--stack", stack]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            UNREADABLE, [Problem(stack, f"pulumi did not answer within {TIMEOUT_S} s")]
        ) from error
    if done.returncode != 0:
        last_line = (done.stderr.strip() or done.stdout.strip() or "pulumi failed").splitlines()[-1]
        fix = "is this the project's folder, and are you logged in?"
        raise InputError(UNREADABLE, [Problem(stack, last_line, fix)])
    document = json.loads(done.stdout)
    if not document:
        what = "has no outputs: it was never applied, or was destroyed"
        raise InputError(UNREADABLE, [Problem(stack, what, f"pulumi up --stack {stack}")])
    return dict(document)
