"""Secrets: a vault for secrets that people write and External Secrets reads. No value passes through Pulumi.

Azure has no secret without a value, so a name exists only after `az keyvault secret set --vault-name … --name
hf-token`.
"""

from __future__ import annotations

from typing import Any

import pulumi

from trainfleet.infra.azure import layout, vaults
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec


class Secrets(PlatformComponent):
    """The vault of a platform's secrets: by the spec's name their name in it, and the store that External
    Secrets reads.
    """

    TYPE = "trainfleet:azure:Secrets"

    def __init__(
        self,
        spec: PlatformSpec,
        tenant: pulumi.Input[str],
        *,
        group: Group,
        network: Network,
        identity: Identity,
        workspace: Workspace,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "secrets", opts)
        self.names: dict[str, pulumi.Input[str]] = {}
        self.store: dict[str, Any] = {}
        self.ready: list[pulumi.Resource] = []
        reader = identity.pods.get("secrets")
        if reader:
            vault = vaults.vault(self, "secrets", group, tenant, open_to=layout.open_to(spec))
            network.endpoint(self, "secrets", "vault", vault.id)
            workspace.send_diagnostics(self, "secrets", vault.id, vaults.LOGGED)
            self.ready.append(
                grant(self, "secrets-read", "Key Vault Secrets User", vault.id, reader.identity)
            )
            self.names = {name: name for name in spec.secrets.names}
            self.store = {
                "azurekv": {
                    "authType": "WorkloadIdentity",
                    "tenantId": tenant,
                    "vaultUrl": vault.properties.vault_uri,
                    "serviceAccountRef": {"name": reader.service_account, "namespace": reader.namespace},
                }
            }
        self.register_outputs({})
