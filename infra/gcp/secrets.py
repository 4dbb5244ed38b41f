"""Secrets: names in Secret Manager. People write the values, External Secrets reads them; no value passes
through Pulumi.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.spec.schema import PlatformSpec

DESTROY_AFTER = f"{30 * 24 * 3600}s"
"""How long a destroyed version can be restored in production."""


def secret_name(spec: PlatformSpec, name: str) -> str:
    """The secret's name in Secret Manager: fixed, because people write its value by this name."""
    return f"trainfleet-{spec.name}-{name}"


class Secrets(PlatformComponent):
    """The secrets of a platform by the spec's name, and their name in Secret Manager."""

    TYPE = "trainfleet:gcp:Secrets"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "secrets", opts)
        names = spec.secrets.names if spec.secrets.provider == "cloud" else ()
        self.secrets = {name: self._secret(name, keys) for name in names}
        self.names: dict[str, pulumi.Input[str]] = {
            name: secret.secret_id for name, secret in self.secrets.items()
        }
        self.register_outputs({})

    def _secret(self, name: str, keys: Keys) -> gcp.secretmanager.Secret:
        what = f"secret-{name}"
        return gcp.secretmanager.Secret(
            self.name(what),
            secret_id=secret_name(self.spec, name),
            replication={
                "user_managed": {
                    "replicas": [
                        {
                            "location": self.spec.region,
                            "customer_managed_encryption": {"kms_key_name": keys.data.id},
                        }
                    ]
                }
            },
            version_destroy_ttl=DESTROY_AFTER if self.spec.production else None,
            labels=self.labels(what),
            opts=self.options(retain=True, depends_on=keys.ready, delete_before_replace=True),
        )
