"""Ray's certificates: two pods trust each other by a real handshake, and the layer's signer has the key alone."""

from __future__ import annotations

import json
import socket
import ssl
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.infra.kubernetes.planned import plan
from trainfleet.infra.kubernetes import names
from trainfleet.infra.kubernetes.access import LAUNCHER_RULES
from trainfleet.infra.kubernetes.certificates import IMAGE
from trainfleet.infra.kubernetes.ray_signer import program
from trainfleet.infra.kubernetes.scripts import certificate
from trainfleet.infra.kubernetes.scripts.ray_signer.authority import Authority, make, pod_names
from trainfleet.infra.platform import TRAINING_NAMESPACE
from trainfleet.infra.program import ray_certificates

if TYPE_CHECKING:
    from tests.infra.kubernetes.conftest import Layer

SCRIPTS = Path(str(files("trainfleet.infra.kubernetes.scripts")))
NAME = "lab-ray-signer"


def authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder, *make(folder))


def pod(signer: Authority, folder: Path, address: str) -> Path:
    """A pod with a key of its own and a certificate for its address."""
    folder.mkdir()
    request = certificate.create_key(folder)
    signed = signer.sign(request, pod_names([address], "training", "cluster.local"), 1)
    (folder / "tls.crt").write_bytes(signed)
    (folder / "ca.crt").write_bytes(signer.certificate)
    return folder


def handshake(server: Path, client: Path, name: str) -> bool:
    """Whether a client that checks the name talks to a server that asks for the client's certificate too."""
    at_server, at_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    at_server.verify_mode = ssl.CERT_REQUIRED
    for context, folder in ((at_server, server), (at_client, client)):
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.load_verify_locations(folder / "ca.crt")
    one, other = socket.socketpair()

    def serve() -> None:
        try:
            with at_server.wrap_socket(one, server_side=True) as talk:
                talk.sendall(b"hello")
        except (ssl.SSLError, OSError):
            one.close()

    thread = Thread(target=serve)
    thread.start()
    try:
        with at_client.wrap_socket(other, server_hostname=name) as talk:
            return talk.recv(5) == b"hello"
    except ssl.SSLError:
        return False
    finally:
        other.close()
        thread.join()


@pytest.mark.parametrize(
    "name",
    [
        "10.40.3.7",
        "localhost",
        "127.0.0.1",
        "run-1-head-svc.training.svc.cluster.local",
        "run-1-head-svc.training.svc",
    ],
)
def test_pods_trust_each_other_by_address_and_by_the_heads_service(tmp_path: Path, name: str) -> None:
    signer = authority(tmp_path / "ca")
    head, worker = (pod(signer, tmp_path / f"pod{each}", f"10.40.3.{each}") for each in (7, 8))
    assert handshake(head, worker, name)


def test_a_pod_is_not_trusted_under_anothers_address_nor_by_another_ca(tmp_path: Path) -> None:
    signer = authority(tmp_path / "ca")
    head, worker = (pod(signer, tmp_path / f"pod{each}", f"10.40.3.{each}") for each in (7, 8))
    assert not handshake(head, worker, "10.40.3.8")
    assert not handshake(head, worker, "run-1-head-svc.kuberay-system.svc")
    stranger = pod(authority(tmp_path / "other"), tmp_path / "stranger", "10.40.3.9")
    assert not handshake(head, stranger, "10.40.3.7")


def test_a_dual_stack_pod_is_trusted_by_both_addresses(tmp_path: Path) -> None:
    signer = authority(tmp_path / "ca")
    worker = pod(signer, tmp_path / "worker", "10.40.3.8")
    head = tmp_path / "head"
    head.mkdir()
    both = pod_names(["10.40.3.7", "fd00::7"], "training", "cluster.local")
    (head / "tls.crt").write_bytes(signer.sign(certificate.create_key(head), both, 1))
    (head / "ca.crt").write_bytes(signer.certificate)
    assert handshake(head, worker, "10.40.3.7")
    assert handshake(head, worker, "fd00::7")


def test_ray_reads_the_files_that_the_init_container_writes() -> None:
    paths = [Path(path) for key, path in names.RAY_TLS_ENVIRONMENT.items() if key != "RAY_USE_TLS"]
    assert {path.name for path in paths} == {"tls.crt", "tls.key", "ca.crt"}
    assert {str(path.parent) for path in paths} == {names.RAY_TLS_MOUNT}


def test_the_contract_names_what_the_layer_installs() -> None:
    contract, planned = ray_certificates(), plan()
    service, deployment = planned.inputs[f"{NAME}-service"], planned.inputs[f"{NAME}-deployment"]
    (port,) = service["spec"]["ports"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert contract["signer"] == f"https://{host}:{int(port['port'])}/sign"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert (env["SERVICE"], env["PORT"], env["AUDIENCE"], env["CA_NAME"]) == (
        host,
        str(int(port["targetPort"])),
        contract["audience"],
        contract["ca_config"],
    )
    script = planned.inputs["lab-ray-tls"]
    assert (script["metadata"]["name"], script["metadata"]["namespace"]) == (contract["config"], "training")
    assert script["data"] == {contract["script"]: (SCRIPTS / "certificate.py").read_text()}
    assert (contract["ca_secret"], contract["ca_mount"]) == ("", "")


def rules(planned: Any, kind: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """The rules of the signer's roles by namespace: group, resources, verbs, named objects."""
    found = {}
    for inputs in planned.of(kind).values():
        if inputs["metadata"]["name"].endswith(names.RAY_SIGNER):
            found[inputs["metadata"].get("namespace", "")] = [
                (
                    ",".join(rule["apiGroups"]),
                    ",".join(rule["resources"]),
                    ",".join(rule["verbs"]),
                    ",".join(rule.get("resourceNames") or ()),
                )
                for rule in inputs["rules"]
            ]
    return found


@pytest.mark.parametrize("choice", ["own-ca", "cert-manager"])
def test_the_signer_may_read_one_secret_and_nobody_else_has_rights_in_its_namespace(choice: str) -> None:
    planned = plan({"layer": {"certificates": choice}})
    creates = [("", "secrets", "create", "")] if choice == "own-ca" else []
    assert rules(planned, "Role") == {
        "ray-certificates": [("", "secrets", "get", "ray-ca"), *creates],
        "training": [
            ("", "pods", "get,list", ""),
            ("", "configmaps", "create", ""),
            ("", "configmaps", "get,update", "ray-ca"),
            ("", "secrets", "get,delete", "ray-ca"),
            ("ray.io", "rayclusters,rayjobs,rayservices", "list", ""),
        ],
    }
    assert rules(planned, "ClusterRole") == {"": [("authentication.k8s.io", "tokenreviews", "create", "")]}
    bindings = [*planned.of("RoleBinding").values(), *planned.of("ClusterRoleBinding").values()]
    own = [each for each in bindings if each["metadata"].get("namespace") == "ray-certificates"]
    subjects = [subject for each in own for subject in each["subjects"]]
    assert subjects == [{"kind": "ServiceAccount", "name": "ray-signer", "namespace": "ray-certificates"}]
    assert TRAINING_NAMESPACE != names.SIGNER_NAMESPACE
    assert not any("secrets" in resources and "get" in verbs for _, resources, verbs in LAUNCHER_RULES)


def test_the_signers_pods_are_restricted_spread_and_not_preempted() -> None:
    planned = plan()
    deployment = planned.inputs[f"{NAME}-deployment"]
    assert deployment["metadata"]["annotations"] == {"pulumi.com/skipAwait": "true"}
    template = deployment["spec"]["template"]["spec"]
    assert template["securityContext"]["runAsNonRoot"] is True
    assert template["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = template["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert template["priorityClassName"] == max(names.PRIORITIES, key=names.PRIORITIES.__getitem__)
    small = plan({"layer": {"priority_classes": False}, "queue": {"enabled": False}})
    assert "priorityClassName" not in small.inputs[f"{NAME}-deployment"]["spec"]["template"]["spec"]


def test_a_platform_with_its_own_cluster_has_two_signers(aws: Layer) -> None:
    """An existing cluster may have one node, which a budget would never let drain."""
    assert aws.inputs["prod-ray-signer-deployment"]["spec"]["replicas"] == 2
    budget = aws.inputs["prod-ray-signer-budget"]["spec"]
    template = aws.inputs["prod-ray-signer-deployment"]["spec"]["template"]
    assert budget["minAvailable"] == 1
    assert budget["selector"]["matchLabels"] == template["metadata"]["labels"]
    existing = plan()
    assert existing.inputs[f"{NAME}-deployment"]["spec"]["replicas"] == 1
    assert f"{NAME}-budget" not in existing.inputs


def test_a_changed_program_starts_new_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    def annotations() -> dict[str, str]:
        template = plan().inputs[f"{NAME}-deployment"]["spec"]["template"]
        found: dict[str, str] = template["metadata"]["annotations"]
        return found

    before = annotations()
    assert annotations() == before
    monkeypatch.setattr("trainfleet.infra.kubernetes.ray_signer.program", lambda: {"__init__.py": "changed"})
    assert annotations() != before


def test_pulumi_keeps_every_module_of_the_signer() -> None:
    planned = plan().inputs
    data = planned[f"{NAME}-program"]["data"]
    assert not [key for key in data if key.startswith("__")], "Pulumi drops these keys"
    (volume,) = [
        each["configMap"]
        for each in planned[f"{NAME}-deployment"]["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "program"
    ]
    assert {item["path"]: data[item["key"]] for item in volume["items"]} == program()


def test_the_signer_uses_the_training_image_where_there_is_no_registry() -> None:
    cases = [
        ("r.example/t", "", IMAGE),
        ("r.example/t", "mine:1", IMAGE),
        ("", "", IMAGE),
        ("", "mine:1", "mine:1"),
    ]
    for registry, image, expected in cases:
        deployment = plan({"ray": {"image": image}}, registry=registry).inputs[f"{NAME}-deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == expected, (registry, image)


def test_cert_manager_writes_the_secret_that_the_signer_reads() -> None:
    planned = plan({"layer": {"certificates": "cert-manager"}})
    made = planned.custom("Certificate")[names.RAY_CA]
    assert made["metadata"]["namespace"] == names.SIGNER_NAMESPACE
    assert (made["spec"]["isCA"], made["spec"]["secretName"]) == (True, names.RAY_CA)
    (issuer,) = planned.custom("Issuer").values()
    assert (issuer["metadata"]["name"], issuer["spec"]) == ("ray-self-signed", {"selfSigned": {}})
    assert made["spec"]["issuerRef"]["name"] == "ray-self-signed"
    assert issuer["metadata"]["namespace"] == names.SIGNER_NAMESPACE
    assert planned.values("lab-cert-manager")["crds"] == {"enabled": True, "keep": False}
    env = planned.inputs[f"{NAME}-deployment"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "CREATE_CA", "value": "no"} in env


@pytest.mark.parametrize("choice", ["own-ca", "cert-manager"])
def test_no_private_key_is_in_any_input_and_no_pod_of_training_mounts_one(choice: str) -> None:
    planned = plan({"layer": {"certificates": choice}})
    assert not [text for text in planned.strings() if "PRIVATE KEY-----" in text]
    inside = [
        each for each in planned.inputs.values() if each.get("metadata", {}).get("namespace") == "training"
    ]
    assert f'"secretName": "{names.RAY_CA}"' not in json.dumps(inside, default=str)
