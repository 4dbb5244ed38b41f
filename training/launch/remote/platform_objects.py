"""The objects of a platform that a run's pods refer to. A pod that refers to a missing one never starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainfleet.errors import Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, RayCertificates
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.queue_state import queue_exists

APPLY = "apply the stack again"
QUEUES = "localqueues"
AUTHORITY_WAIT_S = 30.0
"""How long to wait for what a program of the platform creates soon after the apply."""
POLL_S = 2.0


@dataclass(frozen=True)
class PlatformObject:
    """An object in the namespace of the training pods."""

    kind: str
    """Its plural, as in the API's path and for kubectl."""
    name: str
    fix: str
    created_later: bool = False
    """Whether a program in the cluster creates it shortly after the apply."""


def pod_secrets(outputs: PlatformOutputs, named: Iterable[str]) -> tuple[str, ...]:
    """The Secrets whose keys become variables of the pods: the platform's, then those that a launch names."""
    return tuple(dict.fromkeys(each for each in (outputs.storage_secret, *named) if each))


def platform_objects(outputs: PlatformOutputs, secrets: Iterable[str]) -> list[PlatformObject]:
    """What the pods refer to: the platform's own objects, and these Secrets."""
    found = [
        PlatformObject("serviceaccounts", outputs.service_account, APPLY),
        *(PlatformObject("secrets", each, "kubectl create secret generic …") for each in secrets),
        PlatformObject("persistentvolumeclaims", outputs.shared_volume, APPLY),
        PlatformObject(QUEUES, outputs.queue, APPLY),
    ]
    if outputs.ray_tls and outputs.ray_certificates is not None:
        found += _certificates(outputs.ray_certificates)
    return [each for each in found if each.name]


def _certificates(tls: RayCertificates) -> list[PlatformObject]:
    """What the init container that gets a certificate mounts."""
    script = PlatformObject("configmaps", tls.config, APPLY)
    if not tls.signer:
        later = (
            "the platform's Job creates it; if a newer Trainfleet applied the stack, save its outputs again"
        )
        return [script, PlatformObject("secrets", tls.ca_secret, later, created_later=True)]
    service, _, rest = (urlsplit(tls.signer).hostname or "").partition(".")
    where = f"kubectl -n {rest.partition('.')[0]} describe pods"
    fix = f"the platform's `{service}` publishes it when it runs; an administrator sees why not: {where}"
    return [script, PlatformObject("configmaps", tls.ca_config, fix, created_later=True)]


def missing_objects(cluster: Cluster, required: Iterable[PlatformObject]) -> list[Problem]:
    """The objects that do not exist in the cluster's namespace. What may not be read counts as present,
    except Secrets, which a launcher may create and not read.
    """

    def exists(each: PlatformObject) -> bool:
        try:
            if each.kind == QUEUES:
                return queue_exists(cluster, each.name)
            cluster.request("GET", f"/api/v1/namespaces/{cluster.namespace}/{each.kind}/{each.name}")
        except ApiError as error:
            if error.status == 403 and each.kind == "secrets":
                return not _can_be_created(cluster, each.name)
            return error.status != 404
        return True

    return missing(required, cluster.namespace, exists)


def _can_be_created(cluster: Cluster, name: str) -> bool:
    """Whether no Secret has this name: a dry run stores nothing, and rejects a name that is taken."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": cluster.namespace},
    }
    try:
        cluster.create(secret, dry_run=True)
    except ApiError:
        return False
    return True


def missing(
    required: Iterable[PlatformObject],
    namespace: str,
    exists: Callable[[PlatformObject], bool],
) -> list[Problem]:
    """The objects that do not exist. Waits for those that are created later if nothing else is missing.

    Args:
        required: the objects.
        namespace: where they belong.
        exists: whether one exists, as far as the caller may read it.
    """
    absent = [each for each in required if not exists(each)]
    waited = 0.0
    while absent and all(each.created_later for each in absent) and waited < AUTHORITY_WAIT_S:
        time.sleep(POLL_S)
        waited += POLL_S
        absent = [each for each in absent if not exists(each)]
    return [
        Problem(f"{each.kind}/{each.name}", f"is not in namespace {namespace}", each.fix) for each in absent
    ]
