"""Build the bootstrap of an Azure subscription."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import authorization

from trainfleet.infra.bootstrap.azure.break_glass import BreakGlass
from trainfleet.infra.bootstrap.azure.identities import Identities
from trainfleet.infra.bootstrap.azure.state import CONTAINER, State
from trainfleet.infra.bootstrap.outputs import BootstrapOutputs
from trainfleet.infra.bootstrap.schema import BootstrapSpec


def build(spec: BootstrapSpec) -> BootstrapOutputs:
    """State container, keys, identities of CI and the roles for emergencies."""
    tenant = authorization.get_client_config_output().tenant_id
    state = State(spec, tenant)
    identities = Identities(spec, state)
    BreakGlass(spec, state, identities)
    return BootstrapOutputs(
        state_url=pulumi.Output.concat(f"azblob://{CONTAINER}?storage_account=", state.account.name),
        secrets_provider=pulumi.Output.concat(
            "azurekeyvault://", state.vault.name, ".vault.azure.net/keys/", state.secrets_key.name
        ),
        plan_identity=identities.plan.client_id,
        apply_identity=identities.apply.client_id,
        break_glass_identity=identities.write.role_name,
        others={"tenantId": tenant, "subscriptionId": spec.account},
    )
