"""A stack's outputs are read from whatever Pulumi wrote, or refused with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.infra.outputs.contract import (
    CONTRACT_VERSION,
    bring_forward,
    load_outputs,
    read_outputs,
)
from trainfleet.infra.outputs.migrations import MIGRATIONS

POOL = {
    "name": "h100",
    "kind": "nodes",
    "accelerator": "H100",
    "per_node": 8,
    "instance_type": "p5.48xlarge",
    "min_nodes": 0,
    "max_nodes": 4,
    "spot": False,
    "node_selector": {"trainfleet.io/pool": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "pod_annotations": {},
    "environment": {"FI_PROVIDER": "efa"},
    "rdma": "efa",
    "rdma_resource": "vpc.amazonaws.com/efa",
    "rdma_nics": 32,
    "gpu_memory_gib": 80.0,
    "pod_cpus": 0.0,
    "pod_memory_gib": 0.0,
    "usd_per_hour": 55.04,
    "groups": [],
    "one_group_label": "",
    "queue_annotations": {"kueue.x-k8s.io/podset-preferred-topology": "example.com/rack"},
    "pod_template": {"spec": {"priority": 1}},
}
PLATFORM: dict[str, Any] = {
    "contract_version": CONTRACT_VERSION,
    "trainfleet_version": "0.1.0",
    "name": "prod",
    "cloud": "aws",
    "account": "111122223333",
    "region": "us-east-2",
    "environment": "prod",
    "kube_context": "prod",
    "kubeconfig": "{}",
    "bucket_url": "s3://runs",
    "storage_secret": "",
    "registry": "",
    "image": "example/trainfleet:1",
    "namespace": "training",
    "service_account": "trainer",
    "training_identity": "arn:aws:iam::111122223333:role/trainer",
    "pod_labels": {},
    "pod_template": {"head": {}, "workers": {"spec": {"priority": 1}}},
    "queue": "training",
    "priority_classes": ["high", "low"],
    "launcher_account": "launcher",
    "launcher_token_secret": "launcher-token",
    "autoscaler": "generic",
    "shared_volume": "",
    "secrets": ["hf-token"],
    "pools": [POOL],
    "ray_version": "2.60.0",
    "ray_tls": True,
    "ray_token_auth": True,
    "ray_certificates": {
        "signer": "https://ray-signer.ray-certificates.svc:8443/sign",
        "audience": "ray-signer.trainfleet",
        "ca_config": "ray-ca",
        "ca_secret": "",
        "ca_mount": "",
        "config": "ray-tls",
        "config_mount": "/etc/ray/setup",
        "script": "certificate.py",
        "mount": "/etc/ray/tls",
        "environment": {"RAY_USE_TLS": "1"},
    },
    "ray_redis": None,
}
SIGNATURE = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}


def export(outputs: dict[str, Any] | None) -> dict[str, Any]:
    """A stack export as `pulumi stack export` writes it."""
    root: dict[str, Any] = {
        "urn": "urn:pulumi:prod::trainfleet::pulumi:pulumi:Stack::trainfleet-prod",
        "type": "pulumi:pulumi:Stack",
    }
    if outputs is not None:
        root["outputs"] = outputs
    return {
        "version": 3,
        "deployment": {
            "manifest": {},
            "resources": [{"type": "aws:s3/bucket:Bucket", "outputs": {"platform": 1}}, root],
        },
    }


@pytest.mark.parametrize(
    "document",
    [PLATFORM, {"platform": PLATFORM}, {"platform": PLATFORM, "other": 1}, export({"platform": PLATFORM})],
    ids=["bare", "stack output", "more outputs", "stack export"],
)
def test_outputs_are_read_from_every_document_that_pulumi_writes(document: dict[str, Any]) -> None:
    outputs = read_outputs(document)
    assert outputs.model_dump() == PLATFORM


def test_whole_numbers_may_come_as_floats() -> None:
    document = {**PLATFORM, "contract_version": 2.0, "pools": [{**POOL, "max_nodes": 4.0}]}
    assert read_outputs(document).pools[0].max_nodes == 4


@pytest.mark.parametrize(
    "envelope",
    [{**SIGNATURE, "plaintext": json.dumps("{}")}, {**SIGNATURE, "value": "{}"}],
    ids=["export --show-secrets", "unwrapped value"],
)
def test_secrets_shown_in_an_export_are_opened(envelope: dict[str, Any]) -> None:
    assert read_outputs(export({"platform": {**PLATFORM, "kubeconfig": envelope}})).kubeconfig == "{}"


def test_an_output_that_is_secret_as_a_whole_is_opened() -> None:
    assert read_outputs(export({"platform": {**SIGNATURE, "plaintext": json.dumps(PLATFORM)}})).name == "prod"


@pytest.mark.parametrize(
    ("document", "where", "says"),
    [
        (
            export({"platform": {**PLATFORM, "kubeconfig": {**SIGNATURE, "ciphertext": "abc"}}}),
            "platform.kubeconfig",
            "--show-secrets",
        ),
        (export({"platform": {**SIGNATURE, "plaintext": "{"}}), "platform", "cannot be read"),
        ({"platform": "[secret]"}, "", "--show-secrets"),
        (export({}), "", "has no output `platform`"),
        (export(None), "", "has no output `platform`"),
        ({"version": 3, "deployment": {"manifest": {}}}, "", "nothing was ever deployed"),
        ({"version": 3, "deployment": None}, "", "nothing was ever deployed"),
        ({"bucket": "x"}, "", "it has bucket"),
        ({}, "", "no keys"),
        ([], "", "is not a group of keys"),
        ({**PLATFORM, "contract_version": CONTRACT_VERSION + 1}, "contract_version", "newer Trainfleet"),
        ({**PLATFORM, "contract_version": 0}, "contract_version", "cannot be migrated"),
        ({**PLATFORM, "contract_version": "one"}, "contract_version", "is not a version"),
        ({**PLATFORM, "contract_version": True}, "contract_version", "is not a version"),
        (
            {"platform": {key: value for key, value in PLATFORM.items() if key != "contract_version"}},
            "contract_version",
            "is not a version",
        ),
        ({**PLATFORM, "bucket_ulr": "x"}, "bucket_ulr", "did you mean `bucket_url`?"),
        (
            {**PLATFORM, "pools": [{**POOL, "per_node": "many"}]},
            "pools[0].per_node",
            "must be a whole number",
        ),
        ({key: value for key, value in PLATFORM.items() if key != "queue"}, "queue", "is missing"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(document: Any, where: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_outputs(document)
    (problem,) = caught.value.problems
    assert problem.where == where
    assert says in f"{problem.what} -> {problem.fix}"


def test_a_document_that_the_first_release_wrote_is_read_today() -> None:
    """v1.json is what `trainfleet rehearse aws-prod --outputs` wrote then, untouched."""
    stored = json.loads((Path(__file__).parent / "outputs" / "v1.json").read_text())
    assert stored["contract_version"] == 1
    outputs = read_outputs(stored)
    assert (outputs.contract_version, outputs.name, outputs.account, outputs.launcher_account) == (
        CONTRACT_VERSION,
        "prod",
        "",
        "",
    )
    assert outputs.ray_certificates is None, (
        "that release's layer signed none, so a launcher must not mount any"
    )
    assert [(pool.name, pool.kind, pool.environment, pool.pod_annotations) for pool in outputs.pools] == [
        (name, "nodes", {}, {}) for name in ("h100", "h200", "l4", "a10g")
    ]
    assert [(pool.groups, pool.one_group_label) for pool in outputs.pools] == [([], "")] * 4, (
        "a pool had one capacity"
    )
    assert [(pool.queue_annotations, pool.pod_template) for pool in outputs.pools] == [({}, {})] * 4


def test_a_platform_whose_pods_sign_their_own_certificates_has_no_signer() -> None:
    """As version 5 described it."""
    new = ("signer", "audience", "ca_config")
    own = {key: value for key, value in PLATFORM["ray_certificates"].items() if key not in new}
    own |= {"ca_secret": "ray-ca", "ca_mount": "/etc/ray/ca", "script": "certificate.sh"}
    found = read_outputs({**PLATFORM, "contract_version": 5, "ray_certificates": own}).ray_certificates
    assert found is not None
    assert found.model_dump() == {**own, **dict.fromkeys(new, "")}


def test_every_version_since_the_first_has_a_way_forward() -> None:
    assert sorted(MIGRATIONS) == list(range(1, CONTRACT_VERSION))


@pytest.mark.parametrize("pools", [None, "none", [1], {}])
def test_an_invalid_older_document_is_refused(pools: Any) -> None:
    stored = json.loads((Path(__file__).parent / "outputs" / "v1.json").read_text())
    with pytest.raises(InputError, match="pools"):
        read_outputs({**stored, "pools": pools})


def test_an_older_document_is_migrated_step_by_step() -> None:
    migrations = {
        1: lambda document: {**document, "b": document["a"] + 1},
        2: lambda document: {key: value for key, value in document.items() if key != "a"},
    }
    assert bring_forward({"contract_version": 1, "a": 1}, migrations, 3) == {"contract_version": 3, "b": 2}
    assert bring_forward({"contract_version": 2, "a": 1, "b": 5}, migrations, 3) == {
        "contract_version": 3,
        "b": 5,
    }


def test_an_older_document_without_a_way_forward_is_refused() -> None:
    with pytest.raises(InputError, match="pulumi up"):
        bring_forward({"contract_version": 1}, {2: dict}, 3)


def test_a_saved_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "outputs.json"
    file.write_text(json.dumps({"platform": PLATFORM}))
    assert load_outputs(file).name == "prod"


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ('{"platform": 1}', "is not a group of keys")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "outputs.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_outputs(file)
    assert str(file) in caught.value.problems[0].where
    assert says in caught.value.problems[0].what


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_outputs(tmp_path / "none.json")


def test_launchers_read_outputs_without_pulumi_and_without_the_spec() -> None:
    code = (
        "import sys, trainfleet.infra.outputs.contract; print([name for name in ('pulumi',"
        " 'trainfleet.infra.spec.schema', 'trainfleet.infra.catalog.machines', 'yaml', 'rich') if name in"
        " sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
