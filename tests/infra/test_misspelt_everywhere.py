"""A property with a letter too many, in every file of `infra/` that makes resources: the rehearsal refuses it
by name.

One property per file, chosen by a seed, in `make test-deep`; TRAINFLEET_MISSPELT=all takes every property
there is (hours).
A property that no platform here comes by is passed over, which is proved by an error in its place that does
not show either.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.infra.aws.test_order import WHOLE as AWS
from tests.infra.azure.platforms import SUBSCRIPTION
from tests.infra.azure.test_order import WHOLE as AZURE
from tests.infra.gcp.test_order import WHOLE as GCP
from tests.infra.property_sites import Site, sites
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.steps.session import Rehearsal

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("TRAINFLEET_SEED", "7"))
EVERY = os.environ.get("TRAINFLEET_MISSPELT") == "all"
PARTS = ("infra", "stacks", "trainfleet", "training", "policies", "recipes", "Pulumi.yaml")
NFS = {"storage": {"shared_filesystem": {"kind": "nfs", "capacity_gib": 2560}}}
ORDERED = {
    "gpu_pools": [
        {"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 2, "capacity": ["spot", "on-demand"]}
    ]
}
REDIS = {"ray": {"redis": {"mode": "in-cluster"}}}
PLATFORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "aws": ("aws-dev", {"aws:region": "us-east-2", "trainfleet:platform": {**AWS, **REDIS}}),
    "gcp": (
        "gcp-dev",
        {"gcp:project": GCP["account"], "gcp:region": "us-central1", "trainfleet:platform": GCP},
    ),
    "azure": (
        "azure-dev",
        {
            "azure-native:location": "eastus",
            "azure-native:subscriptionId": SUBSCRIPTION,
            "trainfleet:platform": AZURE,
        },
    ),
    "gcp-nfs": (
        "gcp-dev",
        {"gcp:project": GCP["account"], "gcp:region": "us-central1", "trainfleet:platform": {**GCP, **NFS}},
    ),
    "aws-ordered": ("aws-dev", {"aws:region": "us-east-2", "trainfleet:platform": {**AWS, **ORDERED}}),
    "gcp-ordered": (
        "gcp-dev",
        {
            "gcp:project": GCP["account"],
            "gcp:region": "us-central1",
            "trainfleet:platform": {**GCP, **ORDERED},
        },
    ),
    "azure-nfs": (
        "azure-dev",
        {
            "azure-native:location": "eastus",
            "azure-native:subscriptionId": SUBSCRIPTION,
            "trainfleet:platform": {**AZURE, **NFS},
        },
    ),
}
"""By name: a stack, and settings with which it comes by nearly every line."""
FILES = [file for file in sorted((ROOT / "infra").rglob("*.py")) if sites(file, ROOT)]


def candidates(file: Path) -> list[str]:
    """The platforms that may come by a file, the likeliest first."""
    cloud, part, *_ = (*file.relative_to(ROOT / "infra").parts, "")
    if cloud == "bootstrap":
        return [f"bootstrap-{part}"]
    return (
        [name for name in PLATFORMS if name.startswith(cloud)]
        if cloud in PLATFORMS
        else ["aws", "gcp", "azure", "gcp-nfs", "aws-ordered"]
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project, for tests to write in."""
    copy = tmp_path_factory.mktemp("project")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / part, copy / part)
    return copy


class Previews:
    """Previews of platforms with the project as it is at the moment."""

    def __init__(self, project: Path, ending: ExitStack) -> None:
        self.project, self.ending = project, ending
        self.stages: dict[str, Rehearsal] = {}

    def begin(self, name: str) -> None:
        """Have a platform ready, which previews well as long as nothing is misspelt."""
        if name not in self.stages:
            self.stages[name] = self.ending.enter_context(self._session(name))
            assert self.run(name) == (True, [])

    def run(self, name: str) -> tuple[bool, list[str]]:
        """Whether a preview went well, and what was wrong."""
        return _command(self.stages[name], "preview")

    def apply(self, name: str) -> list[str]:
        """What is wrong in an apply from nothing. A preview does not see objects of a cluster whose provider is
        known only after it was created (GKE).
        """
        with self._session(name) as session:
            return _command(session, "up", "--yes", "--skip-preview")[1]

    def _session(self, name: str) -> AbstractContextManager[Rehearsal]:
        if name.startswith("bootstrap-"):  # a project of its own, whose stacks come by every line
            return rehearsal_session(
                read_project(self.project / "stacks" / "bootstrap", name), find_engine(), RehearsalOptions()
            )
        stack, config = PLATFORMS[name]
        return rehearsal_session(
            read_project(self.project, stack), find_engine(), RehearsalOptions(), settings={"config": config}
        )


def _command(session: Rehearsal, *arguments: str) -> tuple[bool, list[str]]:
    step = Step(arguments[0], arguments[0])
    outcome = session.run(step, *arguments)
    if not outcome.ok:
        session.failed(step, outcome)
    return outcome.ok, [f"{problem.where} {problem.what} {problem.fix}" for problem in step.problems]


@pytest.fixture(scope="module")
def previews(project: Path) -> Iterator[Previews]:
    with ExitStack() as ending, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(project))
        yield Previews(project, ending)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "infra")))
def test_a_misspelt_property_is_refused_by_name(file: Path, project: Path, previews: Previews) -> None:
    found = sites(file, ROOT)
    random.Random(f"{SEED} {file.name}").shuffle(found)
    refused, slipped = 0, []
    for site in found:
        verdict = outcome_of(site, project, previews, candidates(file))
        refused += verdict == "refused"
        slipped += (
            [f"{site.file}:{site.line} {site.name}: {verdict}"]
            if verdict not in ("refused", "passed over")
            else []
        )
        if not EVERY and (refused or slipped):
            break
    assert slipped == []
    assert refused


def outcome_of(site: Site, project: Path, previews: Previews, names: list[str]) -> str:
    """`refused` by name, `passed over` by every platform, or what else came of the mistake."""
    place, text = project / site.file, (project / site.file).read_text()
    wrong = plain(f"{site.name}q")
    try:
        for name in names:
            previews.begin(name)
            place.write_text(site.misspelt(text))
            ok, problems = previews.run(name)
            if not ok:
                return (
                    "refused"
                    if any(wrong in plain(problem) for problem in problems)
                    else f"refused without its name: {json.dumps(problems)[:600]}"
                )
            place.write_text(site.tripped(text))
            if not previews.run(name)[0]:
                place.write_text(site.misspelt(text))
                problems = previews.apply(name)
                named = any(wrong in plain(problem) for problem in problems)
                return "refused" if named else f"taken by {name}"
            place.write_text(text)
        return "passed over"
    finally:
        place.write_text(text)


def plain(name: str) -> str:
    """A name in any way of writing."""
    return name.replace("_", "").lower()
