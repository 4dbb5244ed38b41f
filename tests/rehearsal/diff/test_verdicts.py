"""One change at a time on the real stacks of each cloud: what is updated, what is replaced, and what it
costs.

The verdicts are those of the clouds' own providers (trainfleet/rehearsal/simulation/replacements); the
costs are worked out here from the catalogue's prices. All of them in `make test-deep`, one per kind of
change in `make test`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rehearsal.diff.repos import Repo, make_repo
from trainfleet.infra.catalog.cost import HOURS_PER_MONTH

DISK = (200 * 0.08 + 375 * 0.04) / HOURS_PER_MONTH
"""US dollars an hour for the disk of a node: gp3 with 200 GiB and 500 MiB/s."""
PARTS = ("infra", "policies", "recipes", "stacks", "training", "trainfleet", "Pulumi.yaml")


@dataclass(frozen=True)
class Case:
    """A line that somebody edits, and what a reviewer has to be determined."""

    stack: str
    what: str
    file: str
    old: str
    new: str
    code: int
    expected: dict[str, str]
    """Verb by resource name; others may follow."""
    at_most: float = 0.0
    """US dollars an hour more at the largest."""
    at_least: float = 0.0
    only: bool = False
    """Whether nothing is replaced or deleted next to."""

    @property
    def id(self) -> str:
        return f"{self.stack}: {self.what}"


def stack(name: str) -> str:
    return f"stacks/Pulumi.{name}.yaml"


CASES = (
    Case(
        "aws-prod",
        "a pool's machine",
        stack("aws-prod"),
        "accelerator: A10G, per_node: 1",
        "accelerator: A10G, per_node: 4",
        3,
        {"prod-a10g": "replace"},
        at_most=8 * (5.672 - 1.006),
    ),
    Case(
        "aws-prod",
        "the network's range",
        stack("aws-prod"),
        "10.40.0.0/16",
        "10.41.0.0/16",
        3,
        {"prod-vpc": "replace", "prod-eks": "replace", "prod-a10g": "replace"},
    ),
    Case(
        "aws-prod",
        "the bucket's name",
        "infra/aws/buckets.py",
        "            # Outside production",
        '            bucket=f"acme-{what}",\n            # Outside production',
        3,
        {"prod-bucket": "replace", "prod-access-logs": "replace", "prod-training-rights": "update"},
    ),
    Case(
        "aws-prod",
        "a label of nodes",
        stack("aws-prod"),
        "capacity: spot}",
        "capacity: spot, labels: {tier: low}}",
        2,
        {"prod-l4": "update"},
        only=True,
    ),
    Case(
        "aws-prod",
        "a tag",
        stack("aws-prod"),
        "team: ml",
        "team: vision",
        2,
        {"prod-bucket": "update", "prod-vpc": "update"},
        only=True,
    ),
    Case(
        "aws-prod",
        "more nodes",
        stack("aws-prod"),
        "min_nodes: 0, max_nodes: 8",
        "min_nodes: 0, max_nodes: 9",
        2,
        {"prod-a10g": "update"},
        1.006 + DISK,
        0.0,
        True,
    ),
    Case(
        "aws-prod",
        "a node that stays",
        stack("aws-prod"),
        "min_nodes: 0, max_nodes: 8",
        "min_nodes: 1, max_nodes: 8",
        2,
        {"prod-a10g": "update"},
        0.0,
        1.006 + DISK,
        True,
    ),
    Case(
        "gcp-prod",
        "a pool's machine",
        stack("gcp-prod"),
        "accelerator: L4, per_node: 4",
        "accelerator: L4, per_node: 8",
        3,
        {"prod-l4": "replace"},
        at_most=16 * (4.499264 - 2.249632),
    ),
    Case(
        "gcp-prod",
        "the network's range",
        stack("gcp-prod"),
        "10.64.0.0/16",
        "10.65.0.0/16",
        3,
        {"prod-subnet": "replace", "prod-gke": "replace"},
    ),
    Case(
        "gcp-prod",
        "the bucket's name",
        "infra/gcp/storage.py",
        '        storage_class="STANDARD",',
        '        name=f"acme-prod-{what}",\n        storage_class="STANDARD",',
        3,
        {"prod-bucket": "replace"},
    ),
    Case(
        "gcp-prod",
        "a label",
        stack("gcp-prod"),
        "team: ml",
        "team: vision",
        2,
        {"prod-bucket": "update"},
        only=True,
    ),
    Case(
        "azure-prod",
        "a pool's machine",
        stack("azure-prod"),
        "accelerator: A100-80GB, per_node: 4",
        "accelerator: A100-80GB, per_node: 2",
        3,
        {"prod-a100-held": "replace"},
        at_most=4 * (7.346 - 14.692),
    ),
    Case(
        "azure-prod",
        "the network's range",
        stack("azure-prod"),
        "10.70.0.0/16",
        "10.71.0.0/16",
        3,
        {"prod-vnet": "replace", "prod-aks": "replace"},
    ),
    Case(
        "azure-prod",
        "the bucket's name",
        "infra/azure/storage.py",
        "container_name=what",
        'container_name=f"acme-{what}"',
        3,
        {"prod-bucket-runs": "replace"},
    ),
    Case(
        "azure-prod",
        "a tag",
        stack("azure-prod"),
        "team: ml",
        "team: vision",
        2,
        {"prod-bucket-account": "update"},
        only=True,
    ),
)
Diffs = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def project(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """This project in a repository of its own."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (root / part).is_dir():
            shutil.copytree(
                root / part, source / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(root / part, source / part)
    return make_repo(tmp_path_factory.mktemp("project") / "repo", source)


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.timeout(900)
def test_one_change_at_a_time(case: Case, project: Repo, trainfleet: Diffs, cache_home: Path) -> None:
    file = project.root / case.file
    before = file.read_text()
    try:
        project.replace(case.file, case.old, case.new)
        done = trainfleet(
            "diff",
            case.stack,
            "--worktree",
            "--json",
            cwd=project.root,
            timeout=800,
            XDG_CACHE_HOME=str(cache_home),
        )
    finally:
        file.write_text(before)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    verbs = {change["name"]: change["verb"] for change in found["changes"]}
    assert {name: verbs.get(name) for name in case.expected} == case.expected, found["blast_radius"]
    assert done.returncode == case.code, found["blast_radius"]
    if case.only:
        assert [name for name, verb in verbs.items() if verb in ("replace", "delete")] == []
    old, new = (found["cost"][side]["usd_per_hour"] for side in ("before", "after"))
    assert (new["min"] - old["min"], new["max"] - old["max"]) == (
        pytest.approx(case.at_least, abs=0.01),
        pytest.approx(case.at_most, abs=0.01),
    )
    assert HOURS_PER_MONTH * new["max"] == pytest.approx(
        found["cost"]["after"]["usd_per_month"]["max"], abs=0.05
    )
