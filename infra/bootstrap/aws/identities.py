"""Identities: the OIDC providers of the CI systems, and the roles `plan` and `apply` of their jobs."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents
from trainfleet.infra.bootstrap.aws import documents
from trainfleet.infra.bootstrap.aws.state import LOCKS_PREFIX, State
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import Trust, trusted
from trainfleet.infra.component import SpecComponent

PLAN_S, APPLY_S = 3600, 10800
"""How long a session lasts at most, in seconds: as long as the jobs of `trainfleet init` may run, because
nothing renews the credentials of a job on GitHub."""


class Identities(SpecComponent[BootstrapSpec]):
    """The roles `plan` and `apply`, and the policies that allow an apply (`write`) and need no state."""

    TYPE = "trainfleet:bootstrap:aws:Identities"

    def __init__(
        self, spec: BootstrapSpec, state: State, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "identities", opts)
        trusts = [(each, self._oidc_provider(each)) for each in trusted(spec)]
        self.plan = self.role("plan", documents.trust(trusts, "plan"), PLAN_S)
        self.apply = self.role("apply", documents.trust(trusts, "apply"), APPLY_S)
        keys = (state.bucket.arn, state.state_key.arn, state.secrets_key.arn)
        reads = self.policy("read", documents.read(spec))
        locks = self.policy("plan-state", documents.state(*keys, LOCKS_PREFIX))
        self.write = [
            reads,
            self.policy("apply-state", documents.state(*keys, "")),
            *(self.policy(f"apply-{group}", each) for group, each in documents.write(spec).items()),
        ]
        """The policies of `apply`."""
        self.attach("plan", self.plan, [reads, locks])
        self.attach("apply", self.apply, self.write)
        self.register_outputs({"plan": self.plan.arn, "apply": self.apply.arn})

    def _oidc_provider(self, trust: Trust) -> pulumi.Input[str]:
        """The ARN of the account's OIDC provider for an issuer, of which it can have only one."""
        declared = self.spec.github if trust.system == "github" else self.spec.gitlab
        if declared and declared.existing_provider:
            return declared.existing_provider
        return aws.iam.OpenIdConnectProvider(
            self.name(trust.system),
            url=trust.issuer,
            client_id_lists=[documents.AUDIENCE],
            tags=self.tags(trust.system),
            opts=self.options(protect=True),
        ).arn

    def role(self, what: str, trust: iam_documents.Document, seconds: int) -> aws.iam.Role:
        """Create a role with a fixed name, because its ARN is a variable of CI."""
        return aws.iam.Role(
            self.name(what),
            name=self.name(what),
            description=f"Trainfleet {self.spec.name}: {what}",
            assume_role_policy=iam_documents.to_json(trust),
            max_session_duration=seconds,
            tags=self.tags(what),
            opts=self.options(protect=True, delete_before_replace=True),
        )

    def policy(self, what: str, document: iam_documents.Document) -> aws.iam.Policy:
        """Create a policy that roles share."""
        return aws.iam.Policy(
            self.name(what),
            description=f"Trainfleet {self.spec.name}: {what}",
            policy=iam_documents.to_json(document),
            tags=self.tags(what),
            opts=self.options(),
        )

    def attach(self, what: str, role: aws.iam.Role, policies: list[aws.iam.Policy]) -> None:
        """Attach policies to a role."""
        for policy in policies:
            name = policy._name.removeprefix(f"{self.spec.name}-")
            aws.iam.RolePolicyAttachment(
                self.name(f"{what}-{name}"),
                role=role.name,
                policy_arn=policy.arn,
                opts=self.options(),
            )
