"""Storage: the account and containers of runs and data sets. Private, without shared keys, retained in
production.

A role applies to a whole container, so there are two: training writes `runs` and only reads `data`.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import storage

from trainfleet.infra.azure import layout, storage_accounts
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.keys import Keys
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

RUNS, DATA = "runs", "data"
LOGGED = ("StorageRead", "StorageWrite", "StorageDelete")


def lifecycle(keep_days: int, *, versioned: bool) -> list[storage.ManagementPolicyRuleArgsDict]:
    """Delete snapshots after their retention, and old versions of runs. Objects are never deleted.

    Azure counts the age of a version from the day on which it was written, not from that on which it was
    replaced or deleted (Blob Storage documentation, structure of lifecycle policies). Only soft delete, which
    comes after a rule, counts from then. So the rule deletes an old version of a run at once, and soft delete
    keeps it. Versions of data sets have no rule: any would delete a data set that is older than its period on
    the day after someone deleted it by mistake.
    """
    gone: storage.DateAfterCreationArgsDict = {"days_after_creation_greater_than": keep_days}
    snapshots: storage.ManagementPolicyRuleArgsDict = {
        "name": "forget-old-snapshots",
        "type": "Lifecycle",
        "enabled": True,
        "definition": {"filters": {"blob_types": ["blockBlob"]}, "actions": {"snapshot": {"delete": gone}}},
    }
    versions: storage.ManagementPolicyRuleArgsDict = {
        "name": "forget-old-versions-runs",
        "type": "Lifecycle",
        "enabled": True,
        "definition": {
            "filters": {"blob_types": ["blockBlob"], "prefix_match": [f"{RUNS}/"]},
            "actions": {"version": {"delete": {"days_after_creation_greater_than": 0}}},
        },
    }
    return [snapshots, versions] if versioned else [snapshots]


class Storage(PlatformComponent):
    """The bucket of a platform: its account, and the containers `runs` and `data`."""

    TYPE = "trainfleet:azure:Storage"

    def __init__(
        self,
        spec: PlatformSpec,
        keys: Keys,
        *,
        group: Group,
        network: Network,
        identity: Identity,
        workspace: Workspace,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "storage", opts)
        self.group = group
        self.account = storage_accounts.account(
            self,
            "bucket",
            keys,
            group=group.data,
            name=group.global_name("data"),
            identity=identity.data,
            retain=True,
            depends_on=keys.ready,
            hierarchical=layout.hierarchical(spec),
            open_to=layout.open_to(spec),
        )
        settings = self._settings()
        self.runs = self._container(RUNS, settings)
        self.data = self._container(DATA, settings)
        self._lifecycle(settings)
        trainer = identity.pods["training"].identity
        self.ready: list[pulumi.Resource] = [
            grant(self, "training-writes-runs", "Storage Blob Data Contributor", self.runs.id, trainer),
            grant(self, "training-reads-data", "Storage Blob Data Reader", self.data.id, trainer),
        ]
        """NOTE: a run can neither read nor save without these."""
        for kind in ("blob", "dfs") if layout.hierarchical(spec) else ("blob",):
            network.endpoint(self, f"bucket-{kind}", kind, self.account.id)
        blobs = pulumi.Output.concat(self.account.id, "/blobServices/default")
        workspace.send_diagnostics(self, "bucket", blobs, LOGGED)
        self.url = pulumi.Output.concat(
            "az://", self.runs.name, "@", self.account.name, ".blob.core.windows.net"
        )
        """Where runs are stored: the only container that training may write."""
        self.register_outputs({"account": self.account.name})

    def _settings(self) -> storage.BlobServiceProperties:
        kept = self.spec.storage
        return storage.BlobServiceProperties(
            self.name("bucket-settings"),
            resource_group_name=self.group.data.name,
            account_name=self.account.name,
            # The only one, with a fixed name.
            blob_services_name="default",
            # Also keeps the versions that a lifecycle rule deletes.
            delete_retention_policy={"enabled": True, "days": kept.runs_days},
            container_delete_retention_policy={"enabled": True, "days": kept.retention_days},
            is_versioning_enabled=kept.versioning,
            # Reads and writes are logged in the workspace.
            change_feed={"enabled": False},
            opts=self.options(retain=True, delete_before_replace=True),
        )

    def _lifecycle(self, settings: pulumi.Resource) -> None:
        kept = self.spec.storage
        storage.ManagementPolicy(
            self.name("bucket-lifecycle"),
            resource_group_name=self.group.data.name,
            account_name=self.account.name,
            # The only one, with a fixed name.
            management_policy_name="default",
            policy={"rules": lifecycle(kept.retention_days, versioned=kept.versioning)},
            opts=self.options(retain=True, depends_on=[settings], delete_before_replace=True),
        )

    def _container(self, what: str, settings: pulumi.Resource) -> storage.BlobContainer:
        return storage.BlobContainer(
            self.name(f"bucket-{what}"),
            resource_group_name=self.group.data.name,
            account_name=self.account.name,
            # A fixed name, unique within its account.
            container_name=what,
            public_access=storage.PublicAccess.NONE,
            opts=self.options(retain=True, depends_on=[settings], delete_before_replace=True),
        )
