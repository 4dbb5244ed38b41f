"""Which changes of a spec replace nodes on AWS, on the real engine: images and disks do, owners and tags do
not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.aws.platforms import SMALL
from trainfleet.rehearsal.engine import language
from trainfleet.rehearsal.engine.engine_cli import Runner
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project, sandbox
from trainfleet.rehearsal.simulation.provider import serve
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.state import Cloud

pytestmark = pytest.mark.deep
POOL = {"name": "l4", "accelerator": "L4"}
BEFORE = {**SMALL, "gpu_pools": [POOL]}
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("an owner and a tag", {"owner": "other@example.com", "tags": {"team": "speech"}}),
    ("a larger disk", {"gpu_pools": [{**POOL, "disk_gib": 300}]}),
    (
        "an older version and its image",
        {"gpu_pools": [{**POOL, "version": "1.34", "image_release": "1.34.1-20261112"}]},
    ),
]


@pytest.fixture(scope="module")
def seen(root: Path) -> dict[str, dict[str, Any]]:
    """What decides the nodes of the GPU pool, after each step."""
    cloud, found = Cloud(), {}
    config = {"aws:region": SMALL["region"], "trainfleet:platform": BEFORE}
    with (
        sandbox(read_project(root, "aws-dev"), {"config": config}) as box,
        serve(cloud) as providers,
        language.serve(language.Programs(root=root)) as host,
    ):
        debug = {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": host}
        runner = Runner(find_engine().path, box, debug)
        runner.init()
        file = box.project / f"Pulumi.{box.stack}.yaml"
        for name, changes in [("at first", {}), *STEPS]:
            document = yaml.safe_load(file.read_text())
            document["config"]["trainfleet:platform"] = {**BEFORE, **changes}
            file.write_text(yaml.safe_dump(document))
            applied = runner.run("up", "--yes", "--skip-preview")
            assert applied.ok, applied.output[-4000:]
            (group,) = [
                plain(record.inputs)
                for record in cloud.records.values()
                if record.token == "aws:eks/nodeGroup:NodeGroup" and record.urn.endswith("::lab-l4")
            ]
            decides = ("version", "releaseVersion", "launchTemplate")
            found[name] = {key: group.get(key) for key in decides} | {"tags": group["tags"]}
    return found


def rolled(seen: dict[str, dict[str, Any]], name: str) -> set[str]:
    """The properties that replace nodes and differ from the first apply."""
    first = seen["at first"]
    return {key for key in ("version", "releaseVersion", "launchTemplate") if seen[name][key] != first[key]}


def test_an_owner_and_tags_reach_the_node_group_and_replace_no_node(seen: dict[str, dict[str, Any]]) -> None:
    tags = seen["an owner and a tag"]["tags"]
    assert (tags["trainfleet:owner"], tags["team"]) == ("other@example.com", "speech")
    assert rolled(seen, "an owner and a tag") == set()


def test_a_larger_disk_is_a_new_version_of_the_template(seen: dict[str, dict[str, Any]]) -> None:
    assert rolled(seen, "a larger disk") == {"launchTemplate"}


def test_a_pool_has_the_version_and_the_image_of_its_own(seen: dict[str, dict[str, Any]]) -> None:
    last = seen["an older version and its image"]
    assert (seen["at first"]["version"], seen["at first"]["releaseVersion"]) == ("1.35", None)
    assert (last["version"], last["releaseVersion"]) == ("1.34", "1.34.1-20261112")
