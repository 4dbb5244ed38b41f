"""State: the bucket of Pulumi's state with its access log, and the keys of the bucket and of secrets.

Pulumi locks a stack with an object below `.pulumi/locks/`, so the bucket needs no other lock (Pulumi
documentation, using a DIY backend).
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.component import SpecComponent, answer_after
from trainfleet.infra.gcp.keys import DESTROY_AFTER, ENCRYPTER, ROTATION
from trainfleet.infra.gcp.layout import LOG_WRITER
from trainfleet.infra.gcp.storage import private_bucket

LOCKS_PREFIX = ".pulumi/locks/"
LOG_DAYS = 365
APIS = (
    "cloudkms",
    "cloudresourcemanager",
    "iam",
    "iamcredentials",
    "logging",
    "monitoring",
    "serviceusage",
    "storage",
    "sts",
)
"""APIs that the bootstrap and the logins of CI call."""


class State(SpecComponent[BootstrapSpec]):
    """The bucket `bucket`, and the key `secrets_key` of the secrets in stacks."""

    TYPE = "trainfleet:bootstrap:gcp:State"

    def __init__(self, spec: BootstrapSpec, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "state", opts)
        self.apis: list[pulumi.Resource] = [self._api(name) for name in APIS]
        ring = gcp.kms.KeyRing(
            self.name("keys"), location=spec.region, opts=self.options(retain=True, depends_on=self.apis)
        )
        state_key = self._key("state", ring)
        self.secrets_key = self._key("secrets", ring)
        agent = gcp.storage.get_project_service_account_output(
            project=spec.account, opts=pulumi.InvokeOutputOptions(parent=self, depends_on=self.apis)
        )
        agent = answer_after(agent, *self.apis)
        encrypts = gcp.kms.CryptoKeyIAMMember(
            self.name("state-key-storage"),
            crypto_key_id=state_key.id,
            role=ENCRYPTER,
            member=pulumi.Output.concat("serviceAccount:", agent.email_address),
            opts=self.options(retain=True),
        )
        days = spec.retention_days
        logs = private_bucket(
            self,
            "state-access-logs",
            state_key.id,
            keep_days=days,
            versioned=True,
            expire_days=LOG_DAYS,
            after=[encrypts],
        )
        writer = gcp.storage.BucketIAMMember(
            self.name("state-access-logs-writer"),
            bucket=logs.name,
            role="roles/storage.objectCreator",
            member=LOG_WRITER,
            opts=self.options(retain=True),
        )
        self.bucket = private_bucket(
            self,
            "state",
            state_key.id,
            keep_days=days,
            versioned=True,
            logs=logs,
            after=[encrypts, writer],
        )
        self.register_outputs({"bucket": self.bucket.name})

    def _api(self, name: str) -> gcp.projects.Service:
        return gcp.projects.Service(
            self.name(f"api-{name}"),
            service=f"{name}.googleapis.com",
            # NOTE: disabling an API deletes what stacks of the project created with it.
            disable_on_destroy=False,
            disable_dependent_services=False,
            opts=self.options(protect=True),
        )

    def _key(self, what: str, ring: gcp.kms.KeyRing) -> gcp.kms.CryptoKey:
        return gcp.kms.CryptoKey(
            self.name(f"{what}-key"),
            key_ring=ring.id,
            purpose="ENCRYPT_DECRYPT",
            rotation_period=ROTATION,
            # The time to notice a mistake: state and secrets are unreadable without their key.
            destroy_scheduled_duration=DESTROY_AFTER,
            labels=self.labels(f"{what}-key"),
            opts=self.options(retain=True),
        )
