"""One apply and one destroy of a platform on the real engine, with the order of all operations."""

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
class Lifecycle:
    """The operations of an apply and a destroy in their order, and the stack's outputs."""

    made: list[Operation]
    unmade: list[Operation]
    outputs: PlatformOutputs
    inputs: dict[str, dict[str, Any]]
    """Inputs in the engine's state, by logical name."""
    left: int
    needs: dict[str, set[str]]
    """What the engine creates before a resource and deletes after it: logical names, by logical name."""
    values: dict[str, dict[str, set[str]]]
    """The resources from which each input is computed: logical names, by logical name and input."""


def run_lifecycle(root: Path, stack: str, config: dict[str, Any]) -> Lifecycle:
    """Apply and destroy a platform with these settings."""
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
        state = resources_of(box.state)
        inputs = {each["urn"].rsplit("::", maxsplit=1)[-1]: each.get("inputs", {}) for each in state}
        gone = runner.run("destroy", "--yes", "--skip-preview")
        assert gone.ok, gone.output[-4000:]
        return Lifecycle(
            made,
            cloud.operations[len(made) :],
            outputs,
            inputs,
            len(cloud.records),
            needs_of(state),
            values_of(state),
        )


def values_of(state: list[dict[str, Any]]) -> dict[str, dict[str, set[str]]]:
    """The resources from which each input is computed."""
    return {
        each["urn"].rsplit("::", maxsplit=1)[-1]: {
            name: {urn.rsplit("::", maxsplit=1)[-1] for urn in urns or ()}
            for name, urns in (each.get("propertyDependencies") or {}).items()
        }
        for each in state
    }


def needs_of(state: list[dict[str, Any]]) -> dict[str, set[str]]:
    """What each resource needs, also indirectly: by dependencies, its parent and its provider."""
    direct = {
        each["urn"]: {
            *each.get("dependencies", ()),
            *filter(None, (each.get("parent"), each.get("provider", "").rpartition("::")[0])),
        }
        for each in state
    }
    found: dict[str, set[str]] = {}

    def all_of(urn: str) -> set[str]:
        if urn not in found:
            found[urn] = set()
            found[urn] = direct.get(urn, set()).union(*map(all_of, direct.get(urn, ())))
        return found[urn]

    by_name: dict[str, set[str]] = {}
    for urn in direct:
        names = {name.rsplit("::", maxsplit=1)[-1] for name in all_of(urn)}
        by_name.setdefault(urn.rsplit("::", maxsplit=1)[-1], set()).update(names)
    return by_name


def waiting_for(life: Lifecycle, pools: set[str]) -> set[str]:
    """The resources of the cluster layer that need a node pool."""
    layer = {each.urn.rsplit("::", 1)[-1] for each in life.made if each.token.startswith("kubernetes:")}
    return {name for name in layer if life.needs[name] & pools}


def order_of(operations: list[Operation], pattern: str) -> list[int]:
    """Positions of the resources whose type or name matches `pattern`."""
    found = [
        index
        for index, operation in enumerate(operations)
        if fnmatch(operation.token, pattern) or fnmatch(operation.urn.rsplit("::", maxsplit=1)[-1], pattern)
    ]
    assert found, f"nothing matches {pattern}"
    return found
