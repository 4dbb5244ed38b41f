"""Identity: a service account per role of the platform with least privilege, and which pods may use it.

No account has a key: nodes get tokens from their machine, pods from GKE's metadata server (Workload
Identity). Roles are granted on one bucket, secret or repository where Google supports it; only the nodes' own
roles and access to the cluster are granted on the project.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.apis import Apis
from trainfleet.infra.gcp.layout import NODE_ROLES
from trainfleet.infra.gcp.registry import Registry
from trainfleet.infra.gcp.secrets import Secrets
from trainfleet.infra.gcp.storage import RUNS_PREFIX, Storage
from trainfleet.infra.platform import TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT
from trainfleet.infra.spec.schema import PlatformSpec


@dataclass(frozen=True)
class ExistingAccount:
    """A service account that the platform uses and does not manage."""

    email: pulumi.Output[str]
    member: pulumi.Output[str]
    name: pulumi.Output[str]

    @classmethod
    def of(cls, email: str) -> ExistingAccount:
        """The account with an address, by every name that Google has for it."""
        project = email.partition("@")[2].partition(".")[0]
        return cls(
            email=pulumi.Output.from_input(email),
            member=pulumi.Output.from_input(f"serviceAccount:{email}"),
            name=pulumi.Output.from_input(f"projects/{project}/serviceAccounts/{email}"),
        )


Account = gcp.serviceaccount.Account | ExistingAccount


@dataclass(frozen=True)
class PodIdentity:
    """A service account for the pods of one Kubernetes service account."""

    namespace: str
    service_account: str
    account: Account


class Identity(PlatformComponent):
    """The service accounts of a platform: `nodes` and, by purpose, `pods`."""

    TYPE = "trainfleet:gcp:Identity"

    def __init__(
        self,
        spec: PlatformSpec,
        apis: Apis,
        storage: Storage,
        secrets: Secrets,
        registry: Registry,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "identity", opts)
        self.apis = apis
        self.ready: list[pulumi.Resource] = []
        """NOTE: the roles of nodes. A node never becomes ready without them."""
        self.nodes = self._account("nodes", "what every node does: logs and metrics")
        if not spec.identities.existing:
            for what, role in NODE_ROLES.items():
                self._project_right(what, self.nodes, role)
        self.ready.append(
            gcp.artifactregistry.RepositoryIamMember(
                self.name("nodes-images"),
                location=registry.repository.location,
                repository=registry.repository.name,
                role="roles/artifactregistry.reader",
                member=self.nodes.member,
                opts=self.options(),
            )
        )
        self.pods = {
            "training": PodIdentity(
                TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT, self._account("training", "training pods")
            )
        }
        self._training(self.pods["training"].account, storage)
        if secrets.secrets:
            self.pods["secrets"] = PodIdentity(
                "external-secrets", "external-secrets", self._account("secrets", "External Secrets")
            )
            self._secrets(self.pods["secrets"].account, secrets)
        for who in spec.kubernetes.admins:
            self._person("admin", who, "roles/container.admin")
        # To find the cluster and log in. Its RBAC decides what a launcher may do.
        for who in spec.kubernetes.launchers:
            self._person("launcher", who, "roles/container.clusterViewer")
        self.register_outputs({})

    def _account(self, role: str, purpose: str) -> Account:
        if self.spec.identities.existing:
            return ExistingAccount.of(self.spec.identities.existing[role])
        what = f"{role}-account"
        return gcp.serviceaccount.Account(
            self.name(what),
            # A fixed id: people and policies refer to it, and it is too short for a suffix.
            account_id=layout.account_id(self.spec, role),
            display_name=f"Trainfleet {self.spec.name}: {role}",
            description=f"Trainfleet {self.spec.name}: {purpose}",
            opts=self.options(depends_on=self.apis.ready, delete_before_replace=True),
        )

    def _project_right(self, what: str, account: Account, role: str) -> None:
        self.ready.append(
            gcp.projects.IAMMember(
                self.name(what),
                project=self.spec.account,
                role=role,
                member=account.member,
                opts=self.options(),
            )
        )

    def _training(self, account: Account, storage: Storage) -> None:
        """Read the whole bucket, write runs only. Deleted objects can be restored."""
        gcp.storage.BucketIAMMember(
            self.name("training-read"),
            bucket=storage.bucket.name,
            role="roles/storage.objectViewer",
            member=account.member,
            opts=self.options(),
        )
        gcp.storage.BucketIAMMember(
            self.name("training-write"),
            bucket=storage.bucket.name,
            role="roles/storage.objectUser",
            member=account.member,
            condition={
                "title": "runs only",
                "description": "Training writes below runs/",
                "expression": storage.bucket.name.apply(
                    lambda name: (
                        f'resource.name.startsWith("projects/_/buckets/{name}/objects/{RUNS_PREFIX}")'
                    )
                ),
            },
            opts=self.options(),
        )

    def _secrets(self, account: Account, secrets: Secrets) -> None:
        for name, secret in secrets.secrets.items():
            what = f"secrets-{name}"
            gcp.secretmanager.SecretIamMember(
                self.name(what),
                secret_id=secret.secret_id,
                role="roles/secretmanager.secretAccessor",
                member=account.member,
                opts=self.options(),
            )

    def _person(self, kind: str, who: str, role: str) -> None:
        """Google has no role for one cluster, only for all of a project."""
        what = f"{kind}-{layout.short_name(who)}"  # by person, so that the order in the spec does not matter
        gcp.projects.IAMMember(
            self.name(what),
            project=self.spec.account,
            role=role,
            member=layout.member(who),
            opts=self.options(),
        )


class PodIdentities(PlatformComponent):
    """Bind the service accounts of workloads to their Kubernetes service accounts. Requires the cluster."""

    TYPE = "trainfleet:gcp:PodIdentities"

    def __init__(
        self,
        spec: PlatformSpec,
        cluster: gcp.container.Cluster,
        identity: Identity,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "pod-identities", opts)
        self.bound = identity.pods
        self.ready: list[pulumi.Resource] = []
        """NOTE: a pod that starts before its binding gets no token."""
        for purpose, pods in self.bound.items():
            who = f"{layout.workload_pool(spec)}[{pods.namespace}/{pods.service_account}]"
            self.ready.append(
                gcp.serviceaccount.IAMMember(
                    self.name(f"{purpose}-identity"),
                    service_account_id=pods.account.name,
                    role="roles/iam.workloadIdentityUser",
                    member=f"serviceAccount:{who}",
                    # The identity pool exists only after a cluster of the project uses it.
                    opts=self.options(depends_on=[cluster]),
                )
            )
        self.register_outputs({})
