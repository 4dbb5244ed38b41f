"""Which cluster a kubeconfig means, and that nothing secret leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainfleet.errors import InputError
from trainfleet.infra.local.build import existing_pool
from trainfleet.infra.local.kubeconfig import find_cluster, kubeconfig_path
from trainfleet.infra.program import node_selector
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec

FILE = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "kind-lab",
    "clusters": [
        {
            "name": "lab",
            "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Y2E="},
        },
        {"name": "farm", "cluster": {"server": "https://farm:6443"}},
    ],
    "users": [{"name": "me", "user": {"token": "planted-secret", "client-key-data": "planted-key"}}],
    "contexts": [
        {"name": "kind-lab", "context": {"cluster": "lab", "user": "me"}},
        {"name": "farm", "context": {"cluster": "farm", "user": "me"}},
        {"name": "torn", "context": {"cluster": "gone", "user": "me"}},
    ],
}


def spec(**kubernetes: Any) -> PlatformSpec:
    return parse_spec(
        {
            "name": "local",
            "cloud": "local",
            "owner": "ml@example.com",
            "kubernetes": kubernetes,
            "storage": {"bucket_url": "s3://trainfleet"},
            "secrets": {"provider": "none"},
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(FILE))
    return path


@pytest.mark.parametrize(
    ("pool_spec", "context", "server"),
    [("", "kind-lab", "https://127.0.0.1:6443"), ("farm", "farm", "https://farm:6443")],
)
def test_the_context_of_the_spec_is_found_else_the_current_one(
    file: Path, pool_spec: str, context: str, server: str
) -> None:
    reached = find_cluster(spec(context=pool_spec), file)
    assert reached.context == context
    assert reached.document["current-context"] == context
    assert [cluster["cluster"]["server"] for cluster in reached.document["clusters"]] == [server]


def test_no_credential_leaves_the_file(file: Path) -> None:
    assert "planted" not in str(find_cluster(spec(), file).document)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ("kind-lap", r"no context `kind-lap` \(did you mean `kind-lab`\?\)"),
        ("torn", r"names a cluster `gone` that is not in it"),
    ],
)
def test_a_context_that_leads_nowhere_is_refused(file: Path, context: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_cluster(spec(context=context), file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[" * 50_000, "cannot be read"),
        ("- 1", "is not a kubeconfig"),
        ("{}", "has no current context"),
    ],
)
def test_an_invalid_kubeconfig_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        find_cluster(spec(), path)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        find_cluster(spec(kubeconfig=str(tmp_path / "none")), tmp_path / "none")


def test_without_a_file_a_platform_can_still_be_rehearsed(tmp_path: Path) -> None:
    reached = find_cluster(spec(context="kind-lab"), tmp_path / "none")
    assert (reached.context, reached.document) == ("kind-lab", {})


@pytest.mark.parametrize(
    ("written", "variable", "expected"),
    [
        ("/a/config", "/b/config", "/a/config"),
        ("", "/b/config:/c/config", "/b/config"),
        ("", "", "/home/me/.kube/config"),
    ],
)
def test_the_file_is_the_specs_else_the_environments_else_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, written: str, variable: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("KUBECONFIG", variable)
    assert str(kubeconfig_path(spec(kubeconfig=written))) == expected


def test_existing_gpu_nodes_are_found_by_their_labels() -> None:
    data = {
        "name": "l4",
        "accelerator": "L4",
        "per_node": 1,
        "labels": {"nvidia.com/gpu.product": "NVIDIA-L4"},
    }
    local = parse_spec({**spec().model_dump(mode="json", exclude_unset=True), "gpu_pools": [data]})
    pool = existing_pool(local, local.gpu_pools[0])
    assert node_selector(pool) == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pool.machine.gpu_memory_gib > 20
    assert pool.machine.usd_per_hour(pool.spec.capacity) is None
