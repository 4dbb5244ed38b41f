"""Keys: the KMS keys of a platform, one per kind of reader, rotated every 90 days and retained in production.

cluster: Kubernetes secrets. logs: the log bucket. nodes: disks. data: bucket, images, shared files, secret
values. A key ring can never be deleted, so its name is unique per platform.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent, answer_after
from trainfleet.infra.gcp.apis import Apis, services
from trainfleet.infra.spec.schema import PlatformSpec

ROTATION = f"{90 * 24 * 3600}s"
DESTROY_AFTER = f"{30 * 24 * 3600}s"
ENCRYPTER = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
AGENTS = ("artifactregistry", "secretmanager", "file", "lustre")
"""APIs whose service agent must be created before it can use the data key."""


class Keys(PlatformComponent):
    """The four keys of a platform: `cluster`, `logs`, `nodes`, `data`."""

    TYPE = "trainfleet:gcp:Keys"

    def __init__(
        self,
        spec: PlatformSpec,
        project_number: pulumi.Input[str],
        apis: Apis,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "keys", opts)
        self.number = project_number
        self.ready: list[pulumi.Resource] = []
        """NOTE: the agents' permissions. Encryption fails before they exist."""
        self.ring = gcp.kms.KeyRing(
            self.name("keys"),
            location=spec.region,
            opts=self.options(retain=True, depends_on=apis.ready),
        )
        self.cluster = self._key("cluster")
        self.logs = self._key("logs")
        self.nodes = self._key("nodes")
        self.data = self._key("data")
        self._grant_use("cluster", self.cluster, "gke", self._default_agent("container-engine-robot"))
        self._grant_use("nodes", self.nodes, "compute", self._default_agent("compute-system"))
        logging = gcp.logging.get_project_cmek_settings_output(
            project=spec.account, opts=pulumi.InvokeOutputOptions(parent=self, depends_on=apis.ready)
        )
        logging = answer_after(logging, *apis.ready)
        self._grant_use(
            "logs", self.logs, "logging", pulumi.Output.concat("serviceAccount:", logging.service_account_id)
        )
        storage = gcp.storage.get_project_service_account_output(
            project=spec.account, opts=pulumi.InvokeOutputOptions(parent=self, depends_on=apis.ready)
        )
        storage = answer_after(storage, *apis.ready)
        self._grant_use(
            "data", self.data, "storage", pulumi.Output.concat("serviceAccount:", storage.email_address)
        )
        for api in services(spec):
            if api in AGENTS:
                self._grant_use("data", self.data, api, self._service_agent(api, apis))
        self.register_outputs({})

    def _key(self, what: str) -> gcp.kms.CryptoKey:
        return gcp.kms.CryptoKey(
            self.name(f"{what}-key"),
            key_ring=self.ring.id,
            purpose="ENCRYPT_DECRYPT",
            rotation_period=ROTATION,
            # The time to notice a mistake: data is unreadable without its key.
            destroy_scheduled_duration=DESTROY_AFTER,
            labels=self.labels(f"{what}-key"),
            opts=self.options(retain=True),
        )

    def _default_agent(self, domain: str) -> pulumi.Output[str]:
        """The agent of an API, which exists when the API is enabled."""
        return pulumi.Output.concat(
            "serviceAccount:service-", self.number, f"@{domain}.iam.gserviceaccount.com"
        )

    def _service_agent(self, api: str, apis: Apis) -> pulumi.Output[str]:
        what = f"{api}-agent"
        return gcp.projects.ServiceIdentity(
            self.name(what), service=f"{api}.googleapis.com", opts=self.options(depends_on=apis.ready)
        ).member

    def _grant_use(self, key_name: str, key: gcp.kms.CryptoKey, user: str, member: pulumi.Input[str]) -> None:
        what = f"{key_name}-key-{user}"
        self.ready.append(
            gcp.kms.CryptoKeyIAMMember(
                self.name(what),
                crypto_key_id=key.id,
                role=ENCRYPTER,
                member=member,
                # In production, encrypted data outlives the stack, so the permission to read it must as well.
                opts=self.options(retain=True),
            )
        )
