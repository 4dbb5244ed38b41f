"""Identity: the managed identities of a platform, one per purpose, and which pods may use them. There are no
keys or passwords.

A pod gets its identity only if its account's annotation, its own label and a federated credential for that
account agree. Roles are granted where the resource is created (permissions.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import authorization, containerservice, managedidentity

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT
from trainfleet.infra.spec.schema import PlatformSpec

FLOW_LOGS = "flow-logs"
AUDIENCE = "api://AzureADTokenExchange"
CLIENT_ID_ANNOTATION = "azure.workload.identity/client-id"
POD_LABEL = ("azure.workload.identity/use", "true")
"""NOTE: pods without this label get no token."""


@dataclass(frozen=True)
class ExistingIdentity:
    """A managed identity that the platform uses and does not manage."""

    id: pulumi.Output[str]
    name: pulumi.Output[str]
    principal_id: pulumi.Output[str]
    client_id: pulumi.Output[str]

    @classmethod
    def of(cls, resource_id: str) -> ExistingIdentity:
        """The identity with a resource id. Azure knows its principal and its client."""
        found = managedidentity.get_user_assigned_identity_output(
            resource_group_name=group_of(resource_id), resource_name=resource_id.rpartition("/")[2]
        )
        return cls(
            id=pulumi.Output.from_input(resource_id),
            name=pulumi.Output.from_input(resource_id.rpartition("/")[2]),
            principal_id=found.principal_id,
            client_id=found.client_id,
        )


ManagedIdentity = managedidentity.UserAssignedIdentity | ExistingIdentity


def group_of(resource_id: str) -> str:
    """The resource group in a resource id."""
    return resource_id.split("/")[4]


@dataclass(frozen=True)
class PodIdentity:
    """An identity for the pods of one service account."""

    namespace: str
    service_account: str
    identity: ManagedIdentity


def subject(namespace: str, service_account: str) -> str:
    """The subject of a service account in tokens of the cluster's issuer."""
    return f"system:serviceaccount:{namespace}:{service_account}"


class Identity(PlatformComponent):
    """The identities of a platform: `cluster`, `kubelet`, `disks`, `data`, `flow_logs` and, by purpose,
    `pods`.
    """

    TYPE = "trainfleet:azure:Identity"

    def __init__(
        self, spec: PlatformSpec, group: Group, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "identity", opts)
        self.group = group
        self.cluster = self._identity("cluster")
        self.kubelet = self._identity("kubelet")
        # NOTE: retained with the data that they encrypt, which is unreadable without them.
        self.disks = self._identity("disks", retain=True)
        self.data = self._identity("data", retain=True)
        self.flow_logs = self._identity(FLOW_LOGS) if FLOW_LOGS in layout.identity_purposes(spec) else None
        self.pods = {
            "training": PodIdentity(TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT, self._identity("training"))
        }
        if spec.secrets.provider == "cloud" and spec.secrets.names:
            self.pods["secrets"] = PodIdentity(
                "external-secrets", "external-secrets", self._identity("secrets")
            )
        # The control plane assigns the nodes' identity to the machines that it starts.
        self.ready: list[authorization.RoleAssignment] = []
        """NOTE: a control plane can neither start nodes nor be cleaned up without these."""
        if not spec.identities.existing:
            uses = grant(
                self, "cluster-uses-kubelet", "Managed Identity Operator", self.kubelet.id, self.cluster
            )
            self.ready.append(uses)
        self.register_outputs({})

    def _identity(self, what: str, *, retain: bool = False) -> ManagedIdentity:
        if self.spec.identities.existing:
            return ExistingIdentity.of(self.spec.identities.existing[what])
        name = f"{what}-identity"
        group = self.group.data if retain else self.group.platform
        return managedidentity.UserAssignedIdentity(
            self.name(name),
            resource_group_name=group.name,
            location=self.spec.region,
            tags=self.tags(name),
            opts=self.options(retain=retain),
        )


class PodIdentities(PlatformComponent):
    """Let the service accounts of workloads use their identities: one federated credential each."""

    TYPE = "trainfleet:azure:PodIdentities"

    def __init__(
        self,
        spec: PlatformSpec,
        cluster: containerservice.ManagedCluster,
        identity: Identity,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "pod-identities", opts)
        self.bound = dict(identity.pods)
        issuer = cluster.oidc_issuer_profile.apply(issuer_url)
        existing = spec.identities.existing
        self.ready: list[pulumi.Resource] = [
            managedidentity.FederatedIdentityCredential(
                self.name(f"{purpose}-credential"),
                resource_group_name=(
                    group_of(existing[purpose]) if existing else identity.group.platform.name
                ),
                resource_name_=pods.identity.name,
                issuer=issuer,
                subject=subject(pods.namespace, pods.service_account),
                audiences=[AUDIENCE],
                opts=self.options(),
            )
            for purpose, pods in self.bound.items()
        ]
        """NOTE: a pod that starts before its credential gets no token."""
        self.register_outputs({})


def issuer_url(profile: containerservice.outputs.ManagedClusterOIDCIssuerProfileResponse | None) -> str:
    """The URL of the cluster's token issuer, which every credential trusts."""
    if profile is None or not profile.issuer_url:
        raise LookupError("AKS did not report the cluster's OIDC issuer")
    return profile.issuer_url
