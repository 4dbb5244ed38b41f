"""KubeRay's definitions in the checkout: complete for Ray's own fields, small, and in the SDK's terms."""

from __future__ import annotations

import json

import pytest

from tools.kuberay.crds import HERE, render, slim
from trainfleet.errors import InputError
from trainfleet.infra.kubernetes.crds import definitions, versions
from trainfleet.infra.kubernetes.kuberay import sdk_names
from trainfleet.infra.spec.schema import Ray


def test_the_specs_default_operator_and_the_pinned_module_are_of_a_known_version() -> None:
    assert Ray().operator in versions()
    pin = next(
        line.split()[-1] for line in (HERE / "go.mod").read_text().splitlines() if line.startswith("require")
    )
    assert pin.removeprefix("v") in versions()


@pytest.mark.parametrize("version", versions())
def test_a_version_has_all_kinds_with_rays_own_fields(version: str) -> None:
    found = {definition["spec"]["names"]["kind"]: definition for definition in definitions(version)}
    assert set(found) == {"RayCluster", "RayCronJob", "RayJob", "RayService"}
    for definition in found.values():
        assert [one["storage"] for one in definition["spec"]["versions"]].count(True) == 1
    (stored,) = [one for one in found["RayCluster"]["spec"]["versions"] if one["storage"]]
    spec = stored["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert {"headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling"} <= spec.keys()
    template = spec["headGroupSpec"]["properties"]["template"]["properties"]["spec"]
    assert template.keys() == {"type", "properties", "x-kubernetes-preserve-unknown-fields"}


@pytest.mark.parametrize("version", versions())
def test_containers_keep_the_defaults_that_kueue_compares(version: str) -> None:
    """Kueue's Workload has them too, and Kueue replaces one that differs from its job, without end."""
    found = {definition["spec"]["names"]["kind"]: definition for definition in definitions(version)}
    (stored,) = [one for one in found["RayJob"]["spec"]["versions"] if one["storage"]]
    job = stored["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    cluster = job["rayClusterSpec"]["properties"]
    groups = (cluster["headGroupSpec"], cluster["workerGroupSpecs"]["items"])
    templates = [job["submitterPodTemplate"], *(each["properties"]["template"] for each in groups)]
    for template in templates:
        for kind in ("containers", "initContainers"):
            container = template["properties"]["spec"]["properties"][kind]["items"]
            protocol = container["properties"]["ports"]["items"]["properties"]["protocol"]
            assert protocol == {"type": "string", "default": "TCP"}
            assert container["x-kubernetes-preserve-unknown-fields"] is True


def test_an_unknown_version_is_refused_with_those_that_are_here() -> None:
    with pytest.raises(
        InputError,
        match=r"ray\.operator: this release has no resource definitions of 9\.9\.9 \(one of .*1\.6\.0",
    ):
        definitions("9.9.9")


def test_the_files_are_what_the_tool_writes() -> None:
    for definition in definitions(versions()[-1]):
        assert json.loads(render(definition)) == definition, "already slim: writing it again changes nothing"


def test_slim_keeps_rules_and_a_field_called_description() -> None:
    schema = {
        "description": "prose",
        "properties": {
            "description": {"type": "string", "description": "prose"},
            "pod": {"properties": {"containers": {}, "initContainers": {}}},
        },
        "required": ["description"],
    }
    assert slim(schema) == {
        "properties": {
            "description": {"type": "string"},
            "pod": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
        "required": ["description"],
    }


def test_the_sdks_spelling_changes_extension_keys_only() -> None:
    assert sdk_names({"x-kubernetes-list-type": "map", "a-b": [{"x-kubernetes-map-type": "atomic"}]}) == {
        "x_kubernetes_list_type": "map",
        "a-b": [{"x_kubernetes_map_type": "atomic"}],
    }
