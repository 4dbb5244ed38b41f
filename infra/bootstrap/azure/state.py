"""State: the container of Pulumi's state, its logs, and the keys of the container and of secrets.

Pulumi locks a stack with a blob below `.pulumi/locks/`, so the container needs no other lock (Pulumi
documentation, using a DIY backend).
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import authorization, managedidentity, operationalinsights, resources, storage

from trainfleet.infra.azure import layout, storage_accounts, vaults
from trainfleet.infra.azure.permissions import grant, once_in_effect
from trainfleet.infra.azure.workspace import diagnostics
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.component import SpecComponent

CONTAINER = "state"
LOCKS_PREFIX = ".pulumi/locks/"
LOGGED = ("StorageRead", "StorageWrite", "StorageDelete")
LOG_DAYS = 365


class State(SpecComponent[BootstrapSpec]):
    """The container `container` of the account `account`, and the key `secrets_key` in `vault`."""

    TYPE = "trainfleet:bootstrap:azure:State"

    def __init__(
        self, spec: BootstrapSpec, tenant: pulumi.Input[str], *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "state", opts)
        ranges = tuple(map(str, spec.public_ranges))
        self.data = resources.ResourceGroup(
            self.name("state"),
            location=spec.region,
            tags=self.tags("state"),
            opts=self.options(retain=True),
        )
        self.logs = self._workspace()
        self.vault = vaults.vault(self, "keys", self, tenant, open_to=ranges)
        diagnostics(self, "keys", self.vault.id, vaults.LOGGED, self.logs.id)
        state_key = vaults.key(self, "state", self, self.vault)
        self.secrets_key = vaults.key(self, "secrets", self, self.vault)
        storage_identity = managedidentity.UserAssignedIdentity(
            self.name("storage-identity"),
            resource_group_name=self.data.name,
            location=spec.region,
            tags=self.tags("storage-identity"),
            opts=self.options(retain=True),
        )
        encrypts = grant(
            self,
            "state-encrypts",
            "Key Vault Crypto Service Encryption User",
            state_key.id,
            storage_identity,
            retain=True,
        )
        self.data_name = once_in_effect(state_key.name, encrypts)
        """The state key's name, known when storage may use the key."""
        self.account = storage_accounts.account(
            self,
            "state",
            self,
            group=self.data,
            name=self.global_name("data"),
            identity=storage_identity,
            retain=True,
            depends_on=[encrypts],
            open_to=ranges,
        )
        self.container = self._container()
        blobs = pulumi.Output.concat(self.account.id, "/blobServices/default")
        diagnostics(self, "state", blobs, LOGGED, self.logs.id)
        # NOTE: `apply` may delete the accounts and vaults of the subscription.
        authorization.ManagementLockByScope(
            self.name("state-lock"),
            lock_name=self.name("state"),
            scope=self.data.id,
            level=authorization.LockLevel.CAN_NOT_DELETE,
            notes="State of Pulumi and its keys",
            opts=self.options(retain=True, depends_on=[self.container]),
        )
        self.register_outputs({"account": self.account.name})

    def global_name(self, what: str) -> pulumi.Output[str]:
        """A globally unique name, which differs after a bootstrap is recreated."""
        return self.data.name.apply(lambda seed: layout.global_name(self.spec, what, seed))

    def _workspace(self) -> operationalinsights.Workspace:
        return operationalinsights.Workspace(
            self.name("logs"),
            resource_group_name=self.data.name,
            location=self.spec.region,
            sku={"name": "PerGB2018"},
            retention_in_days=layout.log_retention(LOG_DAYS),
            # No shared keys: all access has an identity.
            features={"disable_local_auth": True, "enable_log_access_using_only_resource_permissions": True},
            public_network_access_for_ingestion="Enabled",
            public_network_access_for_query="Enabled",
            tags=self.tags("logs"),
            opts=self.options(retain=True),
        )

    def _container(self) -> storage.BlobContainer:
        soft_delete: storage.DeleteRetentionPolicyArgsDict = {
            "enabled": True,
            "days": self.spec.retention_days,
        }
        settings = storage.BlobServiceProperties(
            self.name("state-settings"),
            resource_group_name=self.data.name,
            account_name=self.account.name,
            # The only one, with a fixed name.
            blob_services_name="default",
            delete_retention_policy=soft_delete,
            container_delete_retention_policy=soft_delete,
            is_versioning_enabled=True,
            change_feed={"enabled": False},
            opts=self.options(retain=True, delete_before_replace=True),
        )
        gone: storage.DateAfterCreationArgsDict = {
            "days_after_creation_greater_than": self.spec.retention_days
        }
        storage.ManagementPolicy(
            self.name("state-lifecycle"),
            resource_group_name=self.data.name,
            account_name=self.account.name,
            # The only one, with a fixed name.
            management_policy_name="default",
            policy={
                "rules": [
                    {
                        "name": "forget-old-versions",
                        "type": "Lifecycle",
                        "enabled": True,
                        "definition": {
                            "filters": {"blob_types": ["blockBlob"]},
                            "actions": {"snapshot": {"delete": gone}, "version": {"delete": gone}},
                        },
                    }
                ]
            },
            opts=self.options(retain=True, depends_on=[settings], delete_before_replace=True),
        )
        return storage.BlobContainer(
            self.name("state-container"),
            resource_group_name=self.data.name,
            account_name=self.account.name,
            container_name=CONTAINER,
            public_access=storage.PublicAccess.NONE,
            opts=self.options(retain=True, depends_on=[settings], delete_before_replace=True),
        )
