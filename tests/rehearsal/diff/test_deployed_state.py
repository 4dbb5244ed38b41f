"""`diff --state`: the head against what is deployed, with the real engine on the restored export."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.exported import exported, real, resource
from tests.rehearsal.diff.repos import PARTS, PROJECT, STACK, Repo, make_repo

Document = dict[str, Any]
Diffs = Callable[..., "subprocess.CompletedProcess[str]"]
WORD = "s3cr3t-of-prod"
POOL = """
    template = aws.ec2.LaunchTemplate("gpus", image_id="ami-0123456789abcdef0", instance_type="g5.xlarge")
    aws.autoscaling.Group(
        "pool", min_size=0, max_size=2, vpc_zone_identifiers=["subnet-1"], launch_template={"id": template.id}
    )
    aws.iam.RolePolicyAttachment("grant", role="runs", policy_arn=f"arn:aws:iam::{account}:policy/runs")
"""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Document, Document]:
    """The project, and its export with and without the secrets in plain text."""
    folder = tmp_path_factory.mktemp("deployed")
    repo = make_repo(folder / "repo", PROJECT)
    account = "account = aws.get_caller_identity().account_id"
    repo.replace(PARTS, "    vpc = aws.ec2.Vpc(", f"    {account}\n{POOL}\n    vpc = aws.ec2.Vpc(")
    text = (repo.root / STACK).read_text()
    repo.write(STACK, f"{text}  extra:word: {WORD}\n")
    masked, plain = exported(repo, folder / "state", "", "--show-secrets")
    repo.write(STACK, f"{text}  extra:word:\n    secure: v1:bm9uY2U=:Y2lwaGVydGV4dA==\n")
    repo.commit("as deployed")
    return repo.root, real(masked), real(plain)


@pytest.fixture
def project(deployed: tuple[Path, Document, Document], tmp_path: Path) -> Repo:
    """A clone of the project."""
    subprocess.run(["git", "clone", "-q", str(deployed[0]), str(tmp_path / "clone")], check=True)
    return Repo(tmp_path / "clone", tmp_path / "clone")


@pytest.fixture
def on_state(diff: Diffs, project: Repo, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call `trainfleet diff one --state EXPORT` in the clone."""

    def call(document: Document, *flags: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "export.json"
        file.write_text(json.dumps(document))
        return diff("one", "--state", str(file), *flags, cwd=project.root)

    return call


def changes(done: subprocess.CompletedProcess[str]) -> dict[str, Document]:
    assert done.returncode in (0, 2, 3), done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["changes"]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("index", [1, 2])
def test_a_program_that_is_deployed_as_it_is_changes_nothing(
    deployed: tuple[Path, Document, Document], on_state: Diffs, index: int
) -> None:
    done = on_state(deployed[index], "--json")
    assert (done.returncode, changes(done)) == (0, {})
    assert WORD not in done.stdout + done.stderr
    assert json.loads(done.stdout)["access"] == []
    notes = " ".join(json.loads(done.stdout)["notes"])
    assert ("1 value is encrypted" in notes) == (index == 1)


def test_what_was_changed_by_hand_is_changed_back(
    deployed: tuple[Path, Document, Document], on_state: Diffs
) -> None:
    document = copy.deepcopy(deployed[1])
    found = document["deployment"]["resources"]
    found.remove(resource(document, "runs"))
    for side in ("inputs", "outputs"):
        resource(document, "vpc")[side]["tags"] = {"team": "someone-else"}
        resource(document, "pool")[side]["maxSize"] = 8
    by_name = changes(on_state(document, "--json"))
    assert {name: each["verb"] for name, each in by_name.items()} == {
        "runs": "create",
        "vpc": "update",
        "pool": "update",
    }
    (tag,) = by_name["vpc"]["properties"]
    assert (tag["path"], tag["old"], tag["new"]) == ("tags.team", "someone-else", "ml")
    (size,) = by_name["pool"]["properties"]
    assert (size["path"], size["old"], size["new"]) == ("maxSize", 8, 2)


@pytest.mark.deep
def test_a_replacement_shows_the_real_ids_and_what_is_lost(
    deployed: tuple[Path, Document, Document], on_state: Diffs, project: Repo
) -> None:
    project.replace(STACK, "    tags: {team: ml}", "    network: {cidr: 10.77.0.0/16}\n    tags: {team: ml}")
    project.commit("another network")
    done = on_state(deployed[1], "--json")
    assert done.returncode == 3, done.stderr
    by_name = changes(done)
    assert {name: each["verb"] for name, each in by_name.items()} == {"vpc": "replace", "subnet": "replace"}
    real_id = resource(deployed[1], "vpc")["id"]
    assert [each["old"] for each in by_name["subnet"]["properties"] if each["path"] == "vpcId"] == [real_id]


@pytest.mark.deep
def test_defaults_and_names_that_the_real_provider_chose_do_not_change(
    deployed: tuple[Path, Document, Document], on_state: Diffs
) -> None:
    document = copy.deepcopy(deployed[1])
    vpc = resource(document, "vpc")
    vpc["inputs"] |= {"__defaults": ["enableDnsSupport", "instanceTenancy"], "enableDnsSupport": True}
    vpc["inputs"]["instanceTenancy"] = "default"
    template = resource(document, "gpus")
    template["inputs"] |= {"name": "gpus-9f8e7d6", "__defaults": ["name"]}
    assert changes(on_state(document, "--json")) == {}


@pytest.mark.deep
def test_an_export_of_version_1_is_restored(
    deployed: tuple[Path, Document, Document], on_state: Diffs
) -> None:
    document = copy.deepcopy(deployed[2])
    document["version"] = 1
    del document["deployment"]["secrets_providers"]
    found = document["deployment"]["resources"]
    document["deployment"]["resources"] = [each for each in found if "pulumi:providers" not in each["type"]][
        ::-1
    ]
    for each in document["deployment"]["resources"]:
        each.pop("provider", None)
        for side in ("inputs", "outputs"):
            for key, value in (each.get(side) or {}).items():
                if isinstance(value, dict) and "plaintext" in value:
                    each[side][key] = json.loads(value["plaintext"])
    assert set(changes(on_state(document, "--json"))) <= {"secret"}


@pytest.mark.deep
def test_an_export_of_another_stack_is_refused_and_can_be_accepted(
    deployed: tuple[Path, Document, Document], on_state: Diffs
) -> None:
    text = json.dumps(deployed[1]).replace("urn:pulumi:one::tiny::", "urn:pulumi:two::huge::")
    document = json.loads(text.replace("Stack::tiny-one", "Stack::huge-two"))
    done = on_state(document)
    assert done.returncode == 1
    assert "project: is `huge`, not `tiny`" in done.stderr
    assert "stack: is `two`, not `one`" in done.stderr
    assert changes(on_state(document, "--accept-other-stack", "--json")) == {}


def test_flags_without_a_meaning_are_refused_by_name(
    deployed: tuple[Path, Document, Document], on_state: Diffs, diff: Diffs
) -> None:
    done = on_state(deployed[1], "--base", "HEAD~1")
    assert done.returncode == 1
    assert "--base: has no meaning with --state" in done.stderr
    done = diff("one", "--accept-other-stack")
    assert done.returncode == 1
    assert "--accept-other-stack: has no meaning without --state" in done.stderr
    done = diff("--events", "preview.jsonl", "--worktree", "--state", "x.json")
    assert done.returncode == 1
    assert "--worktree: has no meaning with --events" in done.stderr
    assert "--state: has no meaning with --events" in done.stderr
