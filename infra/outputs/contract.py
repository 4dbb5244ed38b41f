"""The outputs of a stack as a versioned model: all that launchers know of a platform. Imports no Pulumi.

Read from a stack export, `pulumi stack output --json` or a file. Older versions are migrated; a newer major
version is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainfleet import json_documents
from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.migrations import MIGRATIONS, Migration
from trainfleet.pydantic_messages import explain, shown

CONTRACT_VERSION = 6


class Output(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeGroupOutput(Output):
    """One node group of a pool that lists several capacities."""

    name: str
    capacity: str
    """How its nodes are bought: reserved, capacity-block, spot, flex-start or on-demand."""
    zone: str
    """Its only zone, or empty."""
    node_selector: dict[str, str]
    """Labels of its nodes in addition to the pool's. Groups of one capacity have the same."""
    spot: bool
    max_nodes: int
    usd_per_hour: float | None


class PoolOutput(Output):
    """One node pool as a launcher sees it."""

    name: str
    kind: str
    """nodes: the cloud's own node pool. hyperpod: SageMaker HyperPod, which always runs and repairs its
    nodes.
    """
    accelerator: str
    per_node: int
    instance_type: str
    min_nodes: int
    max_nodes: int
    spot: bool
    """Whether nodes of the pool may be spot nodes."""
    node_selector: dict[str, str]
    """Selects the pool, and healthy nodes if the cloud labels them."""
    tolerations: list[dict[str, str]]
    """For every taint of the pool's nodes: GPU, spot."""
    pod_annotations: dict[str, str]
    """Annotations that give a pod the pool's fabric (its network interfaces), in addition to
    `rdma_resource`.
    """
    environment: dict[str, str]
    """Environment of a pod's processes to use the fabric (NCCL, libfabric)."""
    rdma: str
    """none, efa, gpudirect-tcpx, gpudirect-tcpxo, roce or infiniband: what pods of this pool can use."""
    rdma_resource: str
    """Extended resource to request for RDMA (vpc.amazonaws.com/efa), or empty."""
    rdma_nics: int
    gpu_memory_gib: float
    pod_cpus: float
    """At most, on an empty node: its CPUs without those that the kubelet reserves; 0 = unknown."""
    pod_memory_gib: float
    """The same of memory."""
    usd_per_hour: float | None
    """Of the preferred capacity."""
    groups: list[NodeGroupOutput]
    """In order of preference, if the pool has several capacities; else empty."""
    one_group_label: str
    """Label of which all workers of a run must find the same value on their nodes, because the fabric or the
    placement of the pool ends at the group; empty: workers may use several groups.
    """
    queue_annotations: dict[str, str]
    """Annotations by which the queue places pods that train: where in the network (Kueue's topology-aware
    scheduling). The queue admits no pod to the pool without them; empty: it has no topology.
    """
    pod_template: dict[str, Any]
    """The platform's changes of the pods that train on the pool: a strategic merge patch, applied after
    `pod_template.workers` of the platform.
    """


class RayCertificates(Output):
    """How a Ray pod gets its certificate: an init container runs `script` from the ConfigMap `config`, which
    asks the platform's signer.
    """

    signer: str
    """URL of the signer. Empty before version 6: pods sign their own, with the key in `ca_secret`."""
    audience: str
    """Of the pod's token for the signer."""
    ca_config: str
    """ConfigMap with the CA's certificate (ca.crt)."""
    ca_secret: str
    """Without a signer: Secret (tls.crt, tls.key) of the CA."""
    ca_mount: str
    config: str
    """ConfigMap with the script."""
    config_mount: str
    script: str
    mount: str
    """Where the init container writes the pod's certificate."""
    environment: dict[str, str]
    """Environment of every process that connects to Ray."""


class PodPatches(Output):
    """The platform's changes of the pods of runs: strategic merge patches of pod templates."""

    head: dict[str, Any] = {}
    workers: dict[str, Any] = {}


class RayRedis(Output):
    """A Redis that Ray clusters may use for their control store (GCS fault tolerance)."""

    address: str
    """redis://HOST:PORT, or rediss:// with TLS."""
    password_secret: str
    """Secret in the namespace, or empty: no password."""
    password_key: str


class PlatformOutputs(Output):
    """The outputs of a stack, for launchers."""

    contract_version: int = Field(CONTRACT_VERSION)
    trainfleet_version: str
    name: str
    cloud: str
    account: str
    """Project id, subscription id or account id; empty if the spec names none."""
    region: str
    environment: str
    kube_context: str
    kubeconfig: str
    """A kubeconfig document (JSON) for the cluster, without stored credentials (exec or empty user)."""
    bucket_url: str
    """s3://, gs://, az:// or file:// URL under which runs are stored."""
    storage_secret: str
    """Secret in the namespace whose keys become environment variables of training pods, for a store that no
    cloud identity opens; or empty.
    """
    registry: str
    """Image repository prefix, or empty."""
    image: str
    """Container image of training pods."""
    namespace: str
    """Where training pods run."""
    service_account: str
    """Kubernetes service account bound to the bucket by workload identity."""
    training_identity: str
    """The cloud identity of that account: role ARN, service account e-mail, client id; empty on local."""
    pod_labels: dict[str, str]
    """Labels that give training pods that identity."""
    pod_template: PodPatches = PodPatches()
    """Applied to the pods of every run, before the recipe's."""
    queue: str
    """Kueue local queue, or empty."""
    priority_classes: list[str]
    """From highest to lowest; empty = the layer installed none."""
    launcher_account: str
    """Service account in the namespace of which launchers request short-lived tokens, or empty."""
    launcher_token_secret: str
    """Secret in the namespace with a token of that account that never expires, or empty (the default)."""
    autoscaler: str
    """SkyPilot's `autoscaler` setting for this context: generic, gke, karpenter or empty."""
    shared_volume: str
    """ReadWriteMany claim name in the namespace, or empty."""
    secrets: list[str]
    pools: list[PoolOutput]
    ray_version: str
    ray_tls: bool
    ray_token_auth: bool
    ray_certificates: RayCertificates | None
    """None without ray_tls."""
    ray_redis: RayRedis | None
    """None = Ray clusters have no external control store."""


_STACK_TYPE = "pulumi:pulumi:Stack"
_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
"""Pulumi marks a secret in an exported state by this key and value (sdk/go/common/resource: SigKey,
SecretSig).
"""


def read_outputs(document: Mapping[str, Any]) -> PlatformOutputs:
    """Read outputs from a `pulumi stack output --json`, a stack export or the bare `platform` object.

    Raises:
        InputError: not a Trainfleet output, or of an unsupported version.
    """
    platform = _plain(_platform_of(document), "platform")
    if not isinstance(platform, dict):
        raise _refused(
            "the output `platform` is not a group of keys",
            "save it again, with --show-secrets if it is printed as [secret]",
        )
    current = bring_forward(platform, MIGRATIONS, CONTRACT_VERSION)
    try:
        return PlatformOutputs.model_validate(current)
    except ValidationError as error:
        problems = [explain(each, PlatformOutputs) for each in error.errors(include_url=False)]
        raise InputError("these are not a platform's outputs", problems) from error


def load_outputs(path: Path) -> PlatformOutputs:
    """Read a file that holds what `read_outputs` reads.

    Raises:
        InputError: no such file, not JSON, or not readable outputs.
    """
    try:
        document = json_documents.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            "cannot read a platform's outputs", [Problem(str(path), error.strerror or str(error), _HOW)]
        ) from error
    except ValueError as error:
        raise InputError(
            "cannot read a platform's outputs", [Problem(str(path), f"is not JSON: {error}", _HOW)]
        ) from error
    try:
        return read_outputs(document)
    except InputError as error:
        located = (Problem(f"{path} {each.where}".strip(), each.what, each.fix) for each in error.problems)
        raise InputError(error.summary, located) from error


def partly_known(name: str, cloud: str, **known: Any) -> PlatformOutputs:
    """The outputs of a platform of which only `known` (fields of PlatformOutputs) is known. The rest is
    empty.
    """
    texts = [field for field, what in PlatformOutputs.model_fields.items() if what.annotation is str]
    lists = ("priority_classes", "secrets", "pools")
    rest = {
        "pod_labels": {},
        "ray_tls": False,
        "ray_token_auth": True,
        "ray_certificates": None,
        "ray_redis": None,
        "trainfleet_version": version("trainfleet"),
    }
    nothing = dict.fromkeys(texts, "") | {field: [] for field in lists} | rest
    return PlatformOutputs.model_validate({**nothing, "name": name, "cloud": cloud, **known})


def bring_forward(
    document: dict[str, Any], migrations: Mapping[int, Migration], current: int
) -> dict[str, Any]:
    """Migrate a document to version `current`, step by step.

    Raises:
        InputError: the version is missing, newer than `current`, or has no migration.
    """
    version = document.get("contract_version")
    if isinstance(version, float) and version.is_integer():
        version = int(version)
    if isinstance(version, bool) or not isinstance(version, int):
        raise _refused(
            f"{shown(version)} is not a version", f"a whole number from 1 to {current}", "contract_version"
        )
    if version > current:
        raise _refused(
            f"version {version} was written by a newer Trainfleet than this one, which reads up to {current}",
            "upgrade Trainfleet here, or export the outputs with the older one",
            "contract_version",
        )
    while version < current:
        if version not in migrations:
            raise _refused(
                f"version {version} cannot be migrated to {current}",
                "run `pulumi up` with this Trainfleet, then export the outputs again",
                "contract_version",
            )
        version, document = version + 1, {**migrations[version](document), "contract_version": version + 1}
    return document


_HOW = "write it with: pulumi stack output --json --show-secrets > FILE"


def _platform_of(document: Any) -> Any:
    """Find the `platform` object in any of the three documents."""
    if not isinstance(document, Mapping):
        raise _refused("is not a group of keys", _HOW)
    if "contract_version" in document:
        return document
    if "deployment" in document:
        return _from_export(document["deployment"])
    if "platform" in document:
        return document["platform"]
    raise _refused(
        f"has no output `platform`; it has {', '.join(sorted(map(str, document))[:8]) or 'no keys'}", _HOW
    )


def _from_export(deployment: Any) -> Any:
    resources = deployment.get("resources") if isinstance(deployment, Mapping) else None
    for resource in resources if isinstance(resources, list) else []:
        if isinstance(resource, Mapping) and resource.get("type") == _STACK_TYPE:
            outputs = resource.get("outputs")
            if isinstance(outputs, Mapping) and "platform" in outputs:
                return outputs["platform"]
            raise _refused(
                "this stack has no output `platform`", "complete one `pulumi up`, then export again"
            )
    raise _refused("this stack export has no stack: nothing was ever deployed", "run `pulumi up` first")


def _plain(value: Any, where: str) -> Any:
    """The value without Pulumi's secret envelopes."""
    if isinstance(value, Mapping):
        if value.get(_SIGNATURE) == _SECRET:
            return _opened(value, where)
        return {key: _plain(member, f"{where}.{key}") for key, member in value.items()}
    return (
        [_plain(member, f"{where}[{index}]") for index, member in enumerate(value)]
        if isinstance(value, list)
        else value
    )


def _opened(envelope: Mapping[str, Any], where: str) -> Any:
    plaintext = envelope.get("plaintext")
    if isinstance(plaintext, str):
        try:
            return _plain(json_documents.parse(plaintext), where)
        except ValueError as error:
            raise _refused("holds a secret that cannot be read", _HOW, where) from error
    if "value" in envelope:
        return _plain(envelope["value"], where)
    raise _refused("is still encrypted", "export with --show-secrets", where)


def _refused(what: str, fix: str, where: str = "") -> InputError:
    return InputError("cannot read a platform's outputs", [Problem(where, what, fix)])
