"""Reading exports of real stacks: versions 1 to 4, encrypted and plain secrets, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal.diff import exports
from trainfleet.rehearsal.diff.compare import deletions
from trainfleet.rehearsal.simulation.deployed import HIDDEN
from trainfleet.rehearsal.simulation.pulumi_values import SECRET, SIGNATURE

EXPORTS = Path(__file__).with_name("exports")
READ = {
    "state-v1-countdown.json": ("countdown", "foo", 1, 8, 0),
    "state-v3-countdown.json": ("countdown", "foo", 3, 8, 0),
    "state-v3-secrets.json": ("countdown", "foo", 3, 8, 2),
    "state-v4-countdown.json": ("countdown", "foo", 4, 8, 0),
    "export-v3-ssm-secrets.json": ("aws-secret-input", "", 3, 6, 0),
    "export-v3-tags-and-sets.json": ("aws-tags-and-sets", "", 3, 7, 0),
}
"""Project, stack (empty: any), version, number of resources, and number of encrypted values."""


@pytest.mark.parametrize("name", READ)
def test_a_real_export_is_read(name: str) -> None:
    project, stack, version, resources, hidden = READ[name]
    found = exports.read(EXPORTS / name)
    assert (found.project, found.version) == (project, version)
    assert stack in ("", found.stack)
    assert len(found.resources) == resources
    assert len(found.hidden) == hidden, found.hidden
    assert "ciphertext" not in json.dumps(found.document)
    assert any(change.destructive for change in deletions(found.resources))


def test_every_export_has_its_row() -> None:
    found = {path.name for path in EXPORTS.glob("*.json") if path.name.startswith(("export-", "state-"))}
    assert found == set(READ)


def test_defaults_of_version_1_become_inputs() -> None:
    found = exports.read(EXPORTS / "state-v1-countdown.json")
    topic = next(each for each in found.resources if each["urn"].endswith("::countDown") and each["custom"])
    assert topic["inputs"]["__defaults"] == ["name"]
    assert topic["inputs"]["name"].startswith("countDown-")


def test_parents_come_before_their_children() -> None:
    found = exports.read(EXPORTS / "state-v1-countdown.json").resources
    urns = [each["urn"] for each in found]
    for index, each in enumerate(found):
        assert each.get("parent") is None or each["parent"] in urns[:index]


# ---- small exports

STACK = "urn:pulumi:prod::shop::pulumi:pulumi:Stack::shop-prod"
BUCKET = "urn:pulumi:prod::shop::aws:s3/bucket:Bucket::data"


def bucket(**more: Any) -> dict[str, Any]:
    return {
        "urn": BUCKET,
        "custom": True,
        "id": "data-1",
        "type": "aws:s3/bucket:Bucket",
        "parent": STACK,
        **more,
    }


def document(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    root = {"urn": STACK, "custom": False, "type": "pulumi:pulumi:Stack"}
    return {"version": 3, "deployment": {"manifest": {}, "resources": [root, *resources], **more}}


def read(folder: Path, content: Any) -> exports.Export:
    file = folder / "export.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return exports.read(file)


def secret(**how: str) -> dict[str, str]:
    return {SIGNATURE: SECRET, **how}


def test_an_encrypted_secret_is_a_placeholder_and_a_plain_one_stays(tmp_path: Path) -> None:
    inputs = {
        "acl": secret(ciphertext="v1:abc"),
        "policy": secret(plaintext='{"a": "hunter2"}'),
        "tag": "[secret]",
    }
    found = read(tmp_path, document(bucket(inputs=inputs)))
    assert found.hidden == ["data: acl", "data: tag"]
    wire = found.resources[1]["inputs"]
    assert wire["acl"] == secret(value=HIDDEN)
    assert wire["policy"]["value"] == {"a": "hunter2"} or wire["policy"]["value"] == '{"a": "hunter2"}'
    assert json.loads(found.deployment["resources"][1]["inputs"]["acl"]["plaintext"]) == HIDDEN
    assert "hunter2" not in " ".join(found.notes())


def test_interrupted_operations_external_resources_and_other_packages_are_named(tmp_path: Path) -> None:
    other = "urn:pulumi:prod::shop::digitalocean:index/droplet:Droplet::web"
    provider = "urn:pulumi:prod::shop::pulumi:providers:digitalocean::default"
    found = read(
        tmp_path,
        document(
            {"urn": provider, "custom": True, "id": "1", "type": "pulumi:providers:digitalocean"},
            {"urn": other, "custom": True, "id": "2", "type": "digitalocean:index/droplet:Droplet"},
            bucket(external=True, dependencies=[other], propertyDependencies={"tags": [other]}),
            pending_operations=[{"type": "creating", "resource": bucket()}],
        ),
    )
    assert found.pending == ["creating data"]
    assert found.left_out == ["web (digitalocean:index/droplet:Droplet)"]
    assert [each["urn"] for each in found.resources] == [STACK, BUCKET]
    assert found.resources[1]["dependencies"] == []
    assert found.resources[1]["propertyDependencies"] == {"tags": []}
    notes = " ".join(found.notes())
    for part in ("creating data", "web (digitalocean", "Read, not managed by the stack: data"):
        assert part in notes


def test_an_export_is_moved_to_another_project_and_stack(tmp_path: Path) -> None:
    moved = exports.renamed(read(tmp_path, document(bucket())), "store", "stage")
    assert [each["urn"] for each in moved.resources] == [
        "urn:pulumi:stage::store::pulumi:pulumi:Stack::store-stage",
        "urn:pulumi:stage::store::aws:s3/bucket:Bucket::data",
    ]
    assert moved.deployment["resources"][1]["parent"] == moved.resources[0]["urn"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ("Exporting stack...", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"steps": []}', "pass it with --events"),
        ('{"hello": 1}', "has no `version` and `deployment`"),
        ('{"version": 9, "deployment": {"resources": [{}]}}', "reads 1 to 4"),
        ('{"version": 3, "deployment": {"resources": []}}', "contains no resources"),
        ('{"version": 3, "deployment": null}', "contains no resources"),
        ('{"version": 3, "deployment": {"resources": [{"id": "a"}]}}', r"resources[0].urn: is missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, what: str) -> None:
    with pytest.raises(InputError, match=re.escape(what)):
        read(tmp_path, content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        exports.read(tmp_path / "none.json")
