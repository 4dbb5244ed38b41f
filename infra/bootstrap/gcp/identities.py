"""Identities: the workload identity pool of the CI systems, and the service accounts `plan` and `apply` that
their jobs act as. No account has a key.
"""

from __future__ import annotations

from collections.abc import Iterable

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.bootstrap.gcp import conditions
from trainfleet.infra.bootstrap.gcp.state import LOCKS_PREFIX, State
from trainfleet.infra.bootstrap.permissions import READ, WRITE, needed
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import Trust, trusted
from trainfleet.infra.component import SpecComponent
from trainfleet.infra.gcp.layout import NODE_ROLES

OBJECTS = "storage.objects."
"""Permissions on objects, which are limited to the buckets of platforms."""
GRANTS = "resourcemanager.projects.setIamPolicy"
PROJECT_ROLES = (*NODE_ROLES.values(), "roles/container.admin", "roles/container.clusterViewer")
"""Roles that platforms grant on the project; CI can grant no others there."""
DECRYPTER = "roles/cloudkms.cryptoKeyDecrypter"
ENCRYPTER = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


class Identities(SpecComponent[BootstrapSpec]):
    """The accounts `plan` and `apply`, the custom roles, and the names of `providers` by CI system."""

    TYPE = "trainfleet:bootstrap:gcp:Identities"

    def __init__(
        self,
        spec: BootstrapSpec,
        state: State,
        project_number: pulumi.Input[str],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "identities", opts)
        self.state = state
        self.pool = gcp.iam.WorkloadIdentityPool(
            self.name("pool"),
            # A deleted pool reserves its id for 30 days.
            workload_identity_pool_id=self.name("systems"),
            display_name=f"Trainfleet {spec.name}",
            description="CI systems that plan and apply stacks",
            opts=self.options(protect=True, depends_on=state.apis),
        )
        trusts = trusted(spec)
        self.providers = {each.system: self._oidc_provider(each, project_number) for each in trusts}
        read = needed("gcp", READ, spec.options)
        write = needed("gcp", WRITE, spec.options)
        objects = [each for each in write if each.startswith(OBJECTS)]
        self.read = self._custom_role("read", read)
        self.write = self._custom_role("write", [each for each in write if each not in {GRANTS, *objects}])
        self.objects = self._custom_role("objects", objects)
        self.grant = self._custom_role("grant", (GRANTS,))
        self.plan = self.account("plan", "reviews of pull requests")
        self.apply = self.account("apply", "applies of the protected branch")
        self._federate(self.plan, "plan", trusts, ("plan", "apply"))
        self._federate(self.apply, "apply", trusts, ("apply",))
        self._allow_plan()
        self.allow_apply("apply", self.apply.member)
        self.register_outputs({})

    def _oidc_provider(self, trust: Trust, number: pulumi.Input[str]) -> pulumi.Output[str]:
        """The full name of the provider of a CI system, which is also the audience of its tokens."""
        name = pulumi.Output.concat(
            "projects/",
            number,
            f"/locations/global/workloadIdentityPools/{self.name('systems')}/providers/{trust.system}",
        )
        return gcp.iam.WorkloadIdentityPoolProvider(
            self.name(trust.system),
            workload_identity_pool_id=self.pool.workload_identity_pool_id,
            workload_identity_pool_provider_id=trust.system,
            display_name=trust.system,
            attribute_condition=conditions.accepts(trust),
            attribute_mapping={
                "google.subject": conditions.subject(trust),
                # For audit logs only: no grant refers to it.
                "attribute.token_subject": "assertion.sub",
            },
            oidc={
                "issuer_uri": trust.issuer,
                "allowed_audiences": [pulumi.Output.concat("https://iam.googleapis.com/", name)],
            },
            opts=self.options(protect=True),
        ).name

    def _custom_role(self, what: str, permissions: Iterable[str]) -> gcp.projects.IAMCustomRole:
        return gcp.projects.IAMCustomRole(
            self.name(f"{what}-role"),
            # A deleted role reserves its id for a month.
            role_id=f"{self.spec.name}_{what}".replace("-", "_"),
            title=f"Trainfleet {self.spec.name}: {what}",
            description="What the resource types of the stacks need",
            permissions=list(permissions),
            opts=self.options(depends_on=self.state.apis),
        )

    def account(self, what: str, purpose: str) -> gcp.serviceaccount.Account:
        """Create a service account with a fixed address, because it is a variable of CI."""
        return gcp.serviceaccount.Account(
            self.name(f"{what}-account"),
            account_id=f"{self.spec.name}-{what}-stacks",
            display_name=f"Trainfleet {self.spec.name}: {what}",
            description=f"Trainfleet {self.spec.name}: {purpose}",
            opts=self.options(protect=True, depends_on=self.state.apis, delete_before_replace=True),
        )

    def _federate(
        self,
        account: gcp.serviceaccount.Account,
        what: str,
        trusts: tuple[Trust, ...],
        subjects: tuple[str, ...],
    ) -> None:
        for trust in trusts:
            for subject in subjects:
                gcp.serviceaccount.IAMMember(
                    self.name(f"{what}-{trust.system}-{subject}"),
                    service_account_id=account.name,
                    role="roles/iam.workloadIdentityUser",
                    member=pulumi.Output.concat(
                        "principal://iam.googleapis.com/",
                        self.pool.name,
                        f"/subject/{trust.system}-{subject}",
                    ),
                    opts=self.options(),
                )

    def _allow_plan(self) -> None:
        member = self.plan.member
        self._on_project("plan-reads", self.read.name, member)
        self.on_state("plan-reads-state", "roles/storage.objectViewer", member)
        # A refresh locks the stack.
        self.on_state("plan-locks", "roles/storage.objectUser", member, LOCKS_PREFIX)
        self.on_secrets("plan-decrypts", DECRYPTER, member)

    def allow_apply(self, what: str, member: pulumi.Input[str]) -> None:
        """Let somebody apply every stack of the project."""
        self._on_project(f"{what}-reads", self.read.name, member)
        self._on_project(f"{what}-writes", self.write.name, member)
        owned = conditions.of_platforms(self.spec.platforms)
        self._on_project(f"{what}-objects", self.objects.name, member, owned)
        self._on_project(f"{what}-grants", self.grant.name, member, conditions.grants_only(PROJECT_ROLES))
        self.on_state(f"{what}-state", "roles/storage.objectUser", member)
        self.on_secrets(f"{what}-encrypts", ENCRYPTER, member)

    def _on_project(
        self, what: str, role: pulumi.Input[str], member: pulumi.Input[str], expression: str = ""
    ) -> None:
        gcp.projects.IAMMember(
            self.name(what),
            project=self.spec.account,
            role=role,
            member=member,
            condition={
                "title": "platforms only",
                "description": "Only what platforms need",
                "expression": expression,
            }
            if expression
            else None,
            opts=self.options(),
        )

    def on_state(self, what: str, role: str, member: pulumi.Input[str], prefix: str = "") -> None:
        """Grant a role on the objects of the state bucket below a prefix."""
        gcp.storage.BucketIAMMember(
            self.name(what),
            bucket=self.state.bucket.name,
            role=role,
            member=member,
            condition={
                "title": "locks only",
                "description": "Lock a stack",
                "expression": self.state.bucket.name.apply(
                    lambda name: f'resource.name.startsWith("projects/_/buckets/{name}/objects/{prefix}")'
                ),
            }
            if prefix
            else None,
            opts=self.options(),
        )

    def on_secrets(self, what: str, role: str, member: pulumi.Input[str]) -> None:
        """Grant the use of the key of the secrets in stacks."""
        gcp.kms.CryptoKeyIAMMember(
            self.name(what),
            crypto_key_id=self.state.secrets_key.id,
            role=role,
            member=member,
            opts=self.options(),
        )
