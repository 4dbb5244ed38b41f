"""How the pods of both launchers get their certificates for Ray, on platforms of this release and of an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.kuberay_launches import TLS, run_spec
from tests.training.launch.kuberay_launches import outputs as kuberay_outputs
from tests.training.launch.saved_platforms import FOLDER, STACKS, outputs
from tests.training.launch.sky_tasks import recipe
from trainfleet.errors import InputError
from trainfleet.infra.outputs.contract import PlatformOutputs, RayCertificates
from trainfleet.training.launch.kuberay.pods import driver_pod, head_pod, worker_pod
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote.platform_objects import platform_objects
from trainfleet.training.launch.remote.pod_diagnostics import pod_wait
from trainfleet.training.launch.remote.ray_certificate import TLS_VOLUME
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky import launcher
from trainfleet.training.launch.sky.config import context_config, context_name
from trainfleet.training.launch.sky.options import SkyOptions

EARLIER = TLS | {
    "signer": "",
    "audience": "",
    "ca_config": "",
    "ca_secret": "ray-ca",
    "ca_mount": "/etc/ray/ca",
    "script": "certificate.sh",
}


def pods(platform: PlatformOutputs) -> list[dict[str, Any]]:
    """The spec of every kind of pod that runs Ray."""
    run = run_spec(platform=platform)
    sky = context_config(platform)["pod_config"]["spec"]
    return [*(make(run)["spec"] for make in (head_pod, worker_pod, driver_pod)), sky]


def mounted(container: dict[str, Any], spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a container mounts, by path."""
    volumes = {each["name"]: each for each in spec["volumes"]}
    return {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}


def test_a_pod_proves_itself_to_the_signer_and_mounts_no_key() -> None:
    for spec in pods(kuberay_outputs()):
        init, ray = spec["initContainers"][0], spec["containers"][0]
        assert init["command"] == ["python", "/etc/ray/setup/certificate.py"]
        assert init["env"] == [
            {"name": "RAY_SIGNER", "value": TLS["signer"]},
            {"name": "RAY_TLS_FOLDER", "value": "/etc/ray/tls"},
        ]
        assert mounted(init, spec)["/etc/ray/setup"]["projected"]["sources"] == [
            {"configMap": {"name": "ray-tls"}},
            {"configMap": {"name": "ray-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "serviceAccountToken": {
                    "audience": "ray-signer.trainfleet",
                    "expirationSeconds": 600,
                    "path": "token",
                }
            },
        ]
        assert "emptyDir" in mounted(ray, spec)["/etc/ray/tls"]
        assert "/etc/ray/setup" not in mounted(ray, spec)
        assert '"secretName"' not in json.dumps(spec)
        assert init["resources"]["requests"]
        assert init["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("stack", STACKS)
def test_no_pod_of_a_cloud_mounts_a_secret_of_the_ca(stack: str) -> None:
    spec = context_config(outputs(stack))["pod_config"]["spec"]
    assert not [each for each in spec["volumes"] if "secret" in each]
    assert spec["initContainers"][0]["image"] == outputs(stack).image


def test_a_platform_of_an_earlier_release_is_served_until_its_stack_is_applied() -> None:
    """Its pods sign their certificates: launchers are upgraded before stacks."""
    platform = kuberay_outputs(ray_certificates=RayCertificates.model_validate(EARLIER))
    for spec in pods(platform):
        init, ray = spec["initContainers"][0], spec["containers"][0]
        assert init["command"] == ["/bin/sh", "/etc/ray/setup/certificate.sh"]
        assert mounted(init, spec)["/etc/ray/ca"]["secret"] == {"secretName": "ray-ca"}
        assert mounted(init, spec)["/etc/ray/setup"]["configMap"] == {"name": "ray-tls"}
        assert {each["name"] for each in init["env"]} == {
            "POD_IP",
            "POD_NAMESPACE",
            "RAY_CA_FOLDER",
            "RAY_TLS_FOLDER",
        }
        assert mounted(ray, spec)["/etc/ray/tls"]["name"] == TLS_VOLUME
        assert "/etc/ray/ca" not in mounted(ray, spec)


def test_outputs_of_an_earlier_release_are_refused_where_the_stack_was_applied_since() -> None:
    """The Secret is gone: the launch names it, and what to do."""
    platform = kuberay_outputs(ray_certificates=RayCertificates.model_validate(EARLIER))
    (found,) = (each for each in platform_objects(platform, ()) if each.name == "ray-ca")
    assert (found.kind, found.created_later) == ("secrets", True)
    assert "if a newer Trainfleet applied the stack, save its outputs again" in found.fix


@pytest.mark.parametrize("written_by", ["this release", "an earlier release", "nobody"])
def test_a_sky_configuration_that_mounts_the_key_is_refused_before_skypilot_starts(
    written_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written before the stack was applied; its pods would wait for ever for their Secret."""
    platform = outputs("aws-prod")
    earlier = platform.model_copy(update={"ray_certificates": RayCertificates.model_validate(EARLIER)})
    of = {"this release": platform, "an earlier release": earlier}.get(written_by)
    entries = {} if of is None else {context_name(platform): context_config(of)}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"kubernetes": {"context_configs": entries}}))
    monkeypatch.setenv("SKYPILOT_GLOBAL_CONFIG", str(config))
    monkeypatch.setattr(launcher, "context_problem", lambda *_: "is not asked here")
    named = (NamedPlatform(platform, FOLDER / "aws-prod.json"),)
    target = Target(Request("lm-1b", on="sky", options=SkyOptions()), named, tmp_path)
    if written_by == "an earlier release":
        with pytest.raises(InputError, match=r"mounts Secret ray-ca.*trainfleet sky setup"):
            launcher.Sky().command(recipe(name="lm-small"), tmp_path / "recipe.yaml", target)
    else:
        assert launcher.Sky().command(recipe(name="lm-small"), tmp_path / "recipe.yaml", target)


def status(state: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """A pod whose init container is in this state."""
    init = {"name": "certificate", "state": state, "lastState": last}
    return {"metadata": {"name": "w"}, "status": {"phase": "Pending", "initContainerStatuses": [init]}}


def test_a_pod_that_waits_for_its_certificate_says_so() -> None:
    running = pod_wait(status({"running": {"startedAt": "2026-11-25T10:00:00Z"}}, {}))
    assert (running.kind, running.text) == (
        "start",
        "init container certificate is running (kubectl logs w -c certificate)",
    )
    why = "the signer of Ray's certificates at https://ray-signer gives this pod none: 403, pod w has ended"
    ended = {"terminated": {"exitCode": 1, "message": f"waiting\n{why}\n"}}
    crashed = pod_wait(status({"waiting": {"reason": "CrashLoopBackOff"}}, ended))
    assert (crashed.kind, crashed.text) == (
        "crash",
        f"container certificate keeps crashing (exit code 1: {why})",
    )
