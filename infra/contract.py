"""The stack's outputs as a versioned model: all that launchers may know of a platform. No Pulumi import.

Written by `stacks/__main__.py` as the stack output `platform`; read from a saved stack export, `pulumi stack output
--json` or a file. A newer major version than this code knows is refused with the reason; older ones are brought forward.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainfleet.errors import InputError, Problem
from trainfleet.words import explain, shown

CONTRACT_VERSION = 1


class Output(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolOutput(Output):
    """One node pool as a launcher sees it."""

    name: str
    accelerator: str
    per_node: int
    instance_type: str
    min_nodes: int
    max_nodes: int
    spot: bool
    node_selector: dict[str, str]
    tolerations: list[dict[str, str]]
    rdma: str
    """none, efa, gpudirect-tcpx, gpudirect-tcpxo, roce or infiniband: what pods of this pool can use."""
    rdma_resource: str
    """Extended resource to request for RDMA (vpc.amazonaws.com/efa), or empty."""
    rdma_nics: int
    gpu_memory_gib: float
    usd_per_hour: float | None


class PlatformOutputs(Output):
    """What a stack hands to launchers."""

    contract_version: int = Field(CONTRACT_VERSION)
    trainfleet_version: str
    name: str
    cloud: str
    region: str
    environment: str
    kube_context: str
    kubeconfig: str
    """A kubeconfig document (JSON) for the cluster, without stored credentials (exec or empty user)."""
    bucket_url: str
    """s3://, gs://, az:// or file:// URL under which runs are stored."""
    registry: str
    """Image repository prefix, or empty."""
    image: str
    """Container image of training pods."""
    namespace: str
    """Where training pods run."""
    service_account: str
    """Kubernetes service account bound to the bucket by workload identity."""
    training_identity: str
    """The cloud's identity behind it: role ARN, service account e-mail, client id; empty on local."""
    queue: str
    """Kueue local queue, or empty."""
    autoscaler: str
    """SkyPilot's `autoscaler` setting for this context: generic, gke, karpenter or empty."""
    shared_volume: str
    """ReadWriteMany claim name in the namespace, or empty."""
    secrets: list[str]
    pools: list[PoolOutput]
    ray_version: str
    ray_tls: bool
    ray_token_auth: bool


Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: dict[int, Migration] = {}
"""By version: how a document of that version becomes one of the next. Raise CONTRACT_VERSION and add the step together."""

_STACK_TYPE = "pulumi:pulumi:Stack"
_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
"""Pulumi marks a secret in an exported state by this key and value (sdk/go/common/resource: SigKey, SecretSig)."""


def read_outputs(document: Mapping[str, Any]) -> PlatformOutputs:
    """Read outputs from a `pulumi stack output --json`, a stack export or the bare `platform` object.

    Raises:
        InputError: not a Trainfleet output, or of a version that cannot be read; says which and why.
    """
    platform = _plain(_platform_of(document), "platform")
    if not isinstance(platform, dict):
        raise _refused("the output `platform` is not a group of keys", "save it again, with --show-secrets if it is shown as [secret]")
    current = bring_forward(platform, MIGRATIONS, CONTRACT_VERSION)
    try:
        return PlatformOutputs.model_validate(current)
    except ValidationError as error:
        problems = [explain(each, PlatformOutputs) for each in error.errors(include_url=False)]
        raise InputError("these are not a platform's outputs", problems) from error


def load_outputs(path: Path) -> PlatformOutputs:
    """Read a file that holds what `read_outputs` reads.

    Raises:
        InputError: no such file, not JSON, or not outputs that can be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("cannot read a platform's outputs", [Problem(str(path), error.strerror or str(error), _HOW)]) from error
    except (ValueError, RecursionError) as error:
        raise InputError("cannot read a platform's outputs", [Problem(str(path), f"is not JSON: {error}", _HOW)]) from error
    try:
        return read_outputs(document)
    except InputError as error:
        located = (Problem(f"{path} {each.where}".strip(), each.what, each.fix) for each in error.problems)
        raise InputError(error.summary, located) from error


def bring_forward(document: dict[str, Any], migrations: Mapping[int, Migration], current: int) -> dict[str, Any]:
    """Take a document of any version that can be read to version `current`, step by step.

    Raises:
        InputError: the version is missing, newer than `current`, or one from which no step leads on.
    """
    version = document.get("contract_version")
    if isinstance(version, float) and version.is_integer():
        version = int(version)
    if isinstance(version, bool) or not isinstance(version, int):
        raise _refused(f"{shown(version)} is no version", f"a whole number from 1 to {current}", "contract_version")
    if version > current:
        raise _refused(
            f"version {version} was written by a newer Trainfleet than this one, which reads up to {current}",
            "upgrade Trainfleet here, or export the outputs with the older one",
            "contract_version",
        )
    while version < current:
        if version not in migrations:
            raise _refused(
                f"version {version} cannot be brought forward to {current}: its fields are not known here",
                "run `pulumi up` with this Trainfleet, then export the outputs again",
                "contract_version",
            )
        version, document = version + 1, {**migrations[version](document), "contract_version": version + 1}
    return document


_HOW = "write it with: pulumi stack output --json --show-secrets > FILE"


def _platform_of(document: Any) -> Any:
    """Find the `platform` object in whichever of the three documents this is."""
    if not isinstance(document, Mapping):
        raise _refused("is not a group of keys", _HOW)
    if "contract_version" in document:
        return document
    if "deployment" in document:
        return _from_export(document["deployment"])
    if "platform" in document:
        return document["platform"]
    raise _refused(f"has no output `platform`; it has {', '.join(sorted(map(str, document))[:8]) or 'no keys'}", _HOW)


def _from_export(deployment: Any) -> Any:
    resources = deployment.get("resources") if isinstance(deployment, Mapping) else None
    for resource in resources if isinstance(resources, list) else []:
        if isinstance(resource, Mapping) and resource.get("type") == _STACK_TYPE:
            outputs = resource.get("outputs")
            if isinstance(outputs, Mapping) and "platform" in outputs:
                return outputs["platform"]
            raise _refused("this stack has no output `platform`", "run `pulumi up` to its end once, then export again")
    raise _refused("this stack export holds no stack: nothing was ever deployed", "run `pulumi up` first")


def _plain(value: Any, where: str) -> Any:
    """The value with Pulumi's secret envelopes opened."""
    if isinstance(value, Mapping):
        if value.get(_SIGNATURE) == _SECRET:
            return _opened(value, where)
        return {key: _plain(member, f"{where}.{key}") for key, member in value.items()}
    return [_plain(member, f"{where}[{index}]") for index, member in enumerate(value)] if isinstance(value, list) else value


def _opened(envelope: Mapping[str, Any], where: str) -> Any:
    plaintext = envelope.get("plaintext")
    if isinstance(plaintext, str):
        try:
            return _plain(json.loads(plaintext), where)
        except ValueError as error:
            raise _refused("holds a secret that cannot be read", _HOW, where) from error
    if "value" in envelope:
        return _plain(envelope["value"], where)
    raise _refused("is still encrypted", "export with --show-secrets", where)


def _refused(what: str, fix: str, where: str = "") -> InputError:
    return InputError("cannot read a platform's outputs", [Problem(where, what, fix)])
