"""The life of a platform, for the tests of every cloud that look at its order: one apply and one destroy on
the real engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from trainfleet.infra.outputs.contract import PlatformOutputs, read_outputs
from trainfleet.rehearsal.engine import language
from trainfleet.rehearsal.engine.engine_cli import Runner, resources_of
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project, sandbox
from trainfleet.rehearsal.simulation.provider import serve
from trainfleet.rehearsal.simulation.state import Cloud, Operation


@dataclass(frozen=True)
class Life:
    """What happened to a platform: names and types in the order they were made and unmade, and the stack's
    outputs.
    """

    made: list[Operation]
    unmade: list[Operation]
    outputs: PlatformOutputs
    inputs: dict[str, dict[str, Any]]
    """By logical name: what was asked for, as the engine's state has it."""
    left: int


def lived(root: Path, stack: str, config: dict[str, Any]) -> Life:
    """Make a platform with these settings and unmake it."""
    settings = {"config": config}
    cloud = Cloud()
    with (
        sandbox(read_project(root, stack), settings) as box,
        serve(cloud) as providers,
        language.serve(language.Programs(root=root)) as host,
    ):
        runner = Runner(
            find_engine().path, box, {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": host}
        )
        runner.init()
        applied = runner.run("up", "--yes", "--skip-preview")
        assert applied.ok, applied.output[-4000:]
        made = list(cloud.operations)
        shown = runner.run("stack", "output", "--json", "--stack", box.stack, events=False)
        outputs = read_outputs(json.loads(shown.output))
        inputs = {
            each["urn"].rsplit("::", maxsplit=1)[-1]: each.get("inputs", {})
            for each in resources_of(box.state)
        }
        gone = runner.run("destroy", "--yes", "--skip-preview")
        assert gone.ok, gone.output[-4000:]
        return Life(made, cloud.operations[len(made) :], outputs, inputs, len(cloud.records))


def places(operations: list[Operation], pattern: str) -> list[int]:
    """Where in the order the resources are whose type or name is like `pattern`."""
    found = [
        index
        for index, operation in enumerate(operations)
        if fnmatch(operation.token, pattern) or fnmatch(operation.urn.rsplit("::", maxsplit=1)[-1], pattern)
    ]
    assert found, f"nothing is like {pattern}"
    return found
