"""Build the bootstrap of a Google Cloud project."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.bootstrap.gcp.break_glass import BreakGlass
from trainfleet.infra.bootstrap.gcp.identities import Identities
from trainfleet.infra.bootstrap.gcp.state import State
from trainfleet.infra.bootstrap.outputs import BootstrapOutputs
from trainfleet.infra.bootstrap.schema import BootstrapSpec


def build(spec: BootstrapSpec) -> BootstrapOutputs:
    """State bucket, keys, identities of CI and the account for emergencies."""
    number = gcp.organizations.get_project_output(project_id=spec.account).number
    state = State(spec)
    identities = Identities(spec, state, number)
    break_glass = BreakGlass(spec, state, identities)
    providers = identities.providers
    return BootstrapOutputs(
        state_url=pulumi.Output.concat("gs://", state.bucket.name),
        secrets_provider=pulumi.Output.concat("gcpkms://", state.secrets_key.id),
        plan_identity=identities.plan.email,
        apply_identity=identities.apply.email,
        break_glass_identity=break_glass.account.email,
        others={
            "identityProvider": next(iter(providers.values())),
            **{f"{system}IdentityProvider": name for system, name in providers.items()},
        },
    )
