"""The size of a node group whose limits change: EKS accepts it, and the autoscaler keeps its size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainfleet.infra.aws.asg_lookup import DESIRED, Running, scaling
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PROGRAM = """
import json
from pathlib import Path

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws.asg_lookup import ScalingGroups, scaling

groups = ScalingGroups("lab")
pools = json.loads(Path(LIMITS).read_text())
for name, (least, most) in pools.items():
    size = scaling(groups.running(f"lab-{name}-"), least, most)
    aws.eks.NodeGroup(
        name,
        cluster_name="lab",
        node_group_name_prefix=f"lab-{name}-",
        node_role_arn="arn:aws:iam::111122223333:role/lab-node",
        subnet_ids=["subnet-0123456789abcdef0"],
        scaling_config=size.config,
        opts=pulumi.ResourceOptions(ignore_changes=size.ignored),
    )
"""


@pytest.mark.parametrize(
    ("running", "limits", "expected", "ignored"),
    [
        (None, (0, 4), 0, True),
        (Running(0, 4, 3), (0, 4), 0, True),
        (Running(0, 4, 0), (1, 4), 1, False),
        (Running(0, 4, 3), (1, 4), 3, False),
        (Running(0, 4, 3), (0, 8), 3, False),
        (Running(0, 4, 3), (0, 2), 2, False),
    ],
    ids=["new", "as it is", "raised from nothing", "raised below the size", "higher limit", "lower limit"],
)
def test_a_group_gets_its_size_only_when_its_limits_change(
    running: Running | None, limits: tuple[int, int], expected: int, *, ignored: bool
) -> None:
    size = scaling(running, *limits)
    assert (size.config["desired_size"], size.ignored) == (expected, [DESIRED] if ignored else [])


class Pools:
    """Node groups on the real engine, with limits that change."""

    def __init__(self, rehearsal: Rehearsal, limits: Path) -> None:
        self.rehearsal, self.limits = rehearsal, limits

    def apply(self, **limits: tuple[int, int]) -> dict[str, str]:
        """Apply these limits; returns what was done, by name."""
        self.limits.write_text(json.dumps(limits))
        step = Step("apply", "apply")
        outcome = self.rehearsal.run(step, *APPLY)
        assert outcome.ok, outcome.errors
        return {urn.rsplit("::", 1)[-1]: op for urn, op in self.rehearsal.only(outcome).items()}

    def autoscaler(self, name: str, size: int) -> None:
        """Another number of nodes, behind the engine's back."""

        def edit(values: dict[str, Any]) -> None:
            values["scalingConfig"]["desiredSize"] = size

        self.rehearsal.cloud.drift(self._urn(name), edit)

    def size(self, name: str) -> dict[str, int]:
        record = self.rehearsal.cloud.of_urn(self._urn(name))
        assert record is not None
        found: dict[str, int] = plain(record.inputs)["scalingConfig"]
        return found

    def _urn(self, name: str) -> str:
        return next(
            record.urn for record in self.rehearsal.cloud.everything() if record.urn.endswith(f"::{name}")
        )


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    folder = tmp_path_factory.mktemp("pools")
    (folder / "Pulumi.yaml").write_text("name: tiny\nruntime: python\n")
    (folder / "__main__.py").write_text(PROGRAM.replace("LIMITS", repr(str(folder / "limits.json"))))
    with rehearsal_session(read_project(folder), find_engine(), RehearsalOptions()) as rehearsal:
        yield Pools(rehearsal, folder / "limits.json")


@pytest.mark.deep
def test_limits_change_as_eks_takes_them_and_the_size_stays(pools: Pools) -> None:
    # A name that begins as the other's, so that the lookup must tell them apart.
    assert pools.apply(l4=(0, 4), **{"l4-big": (2, 2)}) == {"l4": "create", "l4-big": "create"}
    assert pools.size("l4") == {"minSize": 0, "maxSize": 4, "desiredSize": 0}

    assert pools.apply(l4=(1, 4), **{"l4-big": (2, 2)}) == {"l4": "update"}
    assert pools.size("l4") == {"minSize": 1, "maxSize": 4, "desiredSize": 1}
    assert pools.apply(l4=(1, 4), **{"l4-big": (2, 2)}) == {}

    pools.autoscaler("l4", 3)
    assert pools.apply(l4=(1, 4), **{"l4-big": (2, 2)}) == {}
    assert pools.apply(l4=(1, 8), **{"l4-big": (2, 2)}) == {"l4": "update"}
    assert pools.size("l4") == {"minSize": 1, "maxSize": 8, "desiredSize": 3}
    assert pools.apply(l4=(0, 2), **{"l4-big": (2, 2)}) == {"l4": "update"}
    assert pools.size("l4") == {"minSize": 0, "maxSize": 2, "desiredSize": 2}
