"""The program of every stack: what it says to a wrong spec, and what the local platform hands out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trainfleet import __version__
from trainfleet.infra.outputs.contract import read_outputs
from trainfleet.infra.program import image
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.rehearsal.engine import language
from trainfleet.rehearsal.engine.engine_cli import Runner, resources_of
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project, sandbox
from trainfleet.rehearsal.simulation.provider import serve
from trainfleet.rehearsal.simulation.state import Cloud

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LOCAL: dict[str, Any] = {
    "name": "desk",
    "cloud": "local",
    "owner": "ml@example.com",
    "storage": {"bucket_url": "s3://trainfleet/runs"},
    "secrets": {"provider": "none"},
    "kubernetes": {"launchers": ["ml-engineers"]},
    "gpu_pools": [{"name": "l4", "accelerator": "L4", "per_node": 1, "labels": {"gpu": "l4"}}],
}


@contextmanager
def stack(root: Path, config: dict[str, Any]) -> Iterator[Runner]:
    """A stack of this project with the given configuration, over empty simulated clouds."""
    cloud = Cloud()
    with (
        sandbox(read_project(root, "local"), {"config": config}) as box,
        serve(cloud) as providers,
        language.serve(language.Programs(root=root)) as host,
    ):
        runner = Runner(
            find_engine().path, box, {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": host}
        )
        runner.init()
        yield runner


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"trainfleet:platform": {**LOCAL, "ownr": "x"}}, "Pulumi.local.yaml:3 ownr"),
        (
            {"trainfleet:platform": {**LOCAL, "cloud": "gcp", "region": "us-central1"}},
            "Pulumi.local.yaml:3 account",
        ),
        ({}, "trainfleet:platform"),
    ],
)
def test_an_invalid_stack_is_reported_without_a_traceback(
    root: Path, config: dict[str, Any], message: str
) -> None:
    with stack(root, config) as runner:
        outcome = runner.run("preview")
    assert not outcome.ok
    assert message in outcome.output
    assert "Traceback" not in outcome.output


def test_a_local_platform_makes_nothing_in_any_cloud_and_hands_out_the_contract(root: Path) -> None:
    with stack(root, {"trainfleet:platform": LOCAL}) as runner:
        applied = runner.run("up", "--yes", "--skip-preview")
        assert applied.ok, applied.output[-4000:]
        outputs = read_outputs(
            json.loads(
                runner.run("stack", "output", "--json", "--stack", runner.sandbox.stack, events=False).output
            )
        )
        bindings = [
            each for each in resources_of(runner.sandbox.state) if each["type"].endswith(":RoleBinding")
        ]
    subjects = {
        (subject["kind"], subject["name"])
        for binding in bindings
        for subject in binding["inputs"]["subjects"]
    }
    assert subjects >= {("Group", "ml-engineers"), ("Group", "trainfleet:launchers")}
    packages = {step.token.split(":")[0] for step in applied.steps}
    assert packages == {"pulumi", "trainfleet", "kubernetes"}
    assert (outputs.cloud, outputs.bucket_url, outputs.registry, outputs.training_identity) == (
        "local",
        "s3://trainfleet/runs",
        "",
        "",
    )
    (pool,) = outputs.pools
    assert pool.node_selector == {"gpu": "l4"}
    assert pool.usd_per_hour is None


@pytest.mark.parametrize(
    ("pool_spec", "registry", "expected"),
    [("ghcr.io/me/train:1", "registry", "ghcr.io/me/train:1"), ("", "", f"trainfleet:{__version__}")],
)
def test_training_pods_use_the_image_of_the_spec_else_this_releases(
    pool_spec: str, registry: str, expected: str
) -> None:
    spec = PlatformSpec.model_validate({**LOCAL, "ray": {"image": pool_spec}})
    assert image(registry, spec) == expected
