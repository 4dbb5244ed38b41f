"""Components that a plugin builds, in a diff: awsx and eks, and what an export has in them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.exported import exported
from tests.rehearsal.diff.repos import PARTS, Repo, make_repo
from tests.rehearsal.sdks import sdks
from trainfleet.rehearsal.diff.plugin_components import contents

COMPONENT = Path(__file__).parents[1] / "programs" / "foreign" / "component"
Diffs = Callable[..., "subprocess.CompletedProcess[str]"]
MORE = """
staging = awsx.ec2.Vpc("staging", cidr_block="10.1.0.0/16")
aws.ec2.SecurityGroup("staging", vpc_id=staging.vpc_id)
aws.lb.LoadBalancer("web", subnets=network.public_subnet_ids)
"""
GROUP = """    import pulumi_kubernetes as kubernetes

    cluster = kubernetes.Provider("cluster", kubeconfig="{}", cluster_identifier="c")
    inside = pulumi.ResourceOptions(provider=cluster)
    kubernetes.yaml.v2.ConfigGroup(
        "settings",
        yaml="apiVersion: v1\\nkind: ConfigMap\\nmetadata: {name: settings}\\n",
        opts=inside,
    )
"""


@pytest.mark.deep
def test_a_component_of_a_plugin_is_compared_without_its_resources(
    trainfleet: Diffs, cache_home: Path, tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "shop", COMPONENT)
    repo.write("Pulumi.prod.yaml", "config:\n  aws:region: eu-central-1\n")
    repo.commit("settings")
    program = (repo.root / "__main__.py").read_text()
    repo.write("__main__.py", program.replace("10.0.0.0/16", "10.9.0.0/16") + MORE)

    def compared() -> dict[str, Any]:
        path = os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(sdks())))
        settings = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(cache_home)}
        done = trainfleet("diff", ".", "--worktree", "--json", cwd=repo.root, **settings)
        assert done.returncode == 3, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    found, again = compared(), compared()
    changes = {each["name"]: each for each in found["changes"]}
    assert sorted((each["verb"], each["type"], each["name"]) for each in found["changes"]) == [
        ("create", "aws:ec2/securityGroup:SecurityGroup", "staging"),
        ("create", "aws:lb/loadBalancer:LoadBalancer", "web"),
        ("create", "awsx:ec2:Vpc", "staging"),
        ("update", "awsx:ec2:Vpc", "network"),
    ]
    assert changes["network"]["may_replace"] == ["cidrBlock"]
    (note,) = [note for note in found["notes"] if note.startswith("Built by plugins")]
    assert "cluster (eks:index:Cluster), network (awsx:ec2:Vpc), staging (awsx:ec2:Vpc)." in note
    assert again["base_from_cache"]
    assert again["changes"] == found["changes"]


@pytest.mark.deep
def test_what_is_in_a_deployed_component_is_not_deleted(repo: Repo, diff: Diffs, tmp_path: Path) -> None:
    repo.replace(PARTS, "    vpc = aws.ec2.Vpc(", f"{GROUP}\n    vpc = aws.ec2.Vpc(")
    repo.commit("as deployed")
    (document,) = exported(repo, tmp_path / "state", "")
    resources = document["deployment"]["resources"]
    group = next(each for each in resources if each["type"] == "kubernetes:yaml/v2:ConfigGroup")
    prefix, kinds, name = group["urn"].rsplit("::", 2)
    token = "kubernetes:core/v1:ConfigMap"
    provider = next(each for each in resources if each["type"] == "pulumi:providers:kubernetes")
    resources.insert(
        resources.index(group) + 1,
        {
            "urn": f"{prefix}::{kinds}${token}::{name}:default/settings",
            "custom": True,
            "id": "default/settings",
            "type": token,
            "inputs": {"metadata": {"name": "settings"}},
            "outputs": {"metadata": {"name": "settings"}},
            "parent": group["urn"],
            "provider": f"{provider['urn']}::{provider['id']}",
        },
    )
    file = tmp_path / "export.json"
    file.write_text(json.dumps(document))
    done = diff("one", "--state", str(file), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["changes"] == []
    assert [note for note in found["notes"] if "settings (kubernetes:yaml/v2:ConfigGroup)" in note]


def test_a_provider_in_a_component_stays_if_other_resources_use_it() -> None:
    prefix = "urn:pulumi:one::tiny::"
    group = f"{prefix}kubernetes:yaml/v2:ConfigGroup::group"
    provider = f"{prefix}kubernetes:yaml/v2:ConfigGroup$pulumi:providers:kubernetes::inner"
    unused = provider.replace("inner", "unused")
    child = f"{prefix}kubernetes:yaml/v2:ConfigGroup$kubernetes:core/v1:ConfigMap::child"
    other = f"{prefix}kubernetes:core/v1:ConfigMap::other"
    resources = [
        {"urn": group, "type": "kubernetes:yaml/v2:ConfigGroup"},
        *(
            {"urn": urn, "type": "pulumi:providers:kubernetes", "custom": True, "id": "1", "parent": group}
            for urn in (provider, unused)
        ),
        {"urn": child, "type": "kubernetes:core/v1:ConfigMap", "custom": True, "id": "a", "parent": group},
        {
            "urn": other,
            "type": "kubernetes:core/v1:ConfigMap",
            "custom": True,
            "id": "b",
            "provider": f"{provider}::1",
        },
    ]
    assert contents(resources) == {child, unused}
