"""Build the bootstrap of an AWS account."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.bootstrap.aws.break_glass import BreakGlass
from trainfleet.infra.bootstrap.aws.identities import Identities
from trainfleet.infra.bootstrap.aws.state import State
from trainfleet.infra.bootstrap.outputs import BootstrapOutputs
from trainfleet.infra.bootstrap.schema import BootstrapSpec

QUERY = "?awssdk=v2&region="
"""Without `awssdk=v2`, Pulumi 3.200 opens both URLs with version 1 of the AWS SDK, which is no longer
supported, has no `sso_session`, and ignores AWS_ENDPOINT_URL (gocloud.dev 0.37, aws.UseV2). Newer engines
ignore the parameter."""


def build(spec: BootstrapSpec) -> BootstrapOutputs:
    """State bucket, keys, identities of CI and the role for emergencies."""
    account = aws.get_caller_identity_output().account_id
    state = State(spec, account)
    identities = Identities(spec, state)
    break_glass = BreakGlass(spec, state, identities, account)
    return BootstrapOutputs(
        state_url=pulumi.Output.concat("s3://", state.bucket.bucket, QUERY, spec.region),
        secrets_provider=pulumi.Output.concat("awskms:///", state.secrets_key.arn, QUERY, spec.region),
        plan_identity=identities.plan.arn,
        apply_identity=identities.apply.arn,
        break_glass_identity=break_glass.role.arn,
    )
