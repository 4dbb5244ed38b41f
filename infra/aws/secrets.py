"""Secrets: names in Secrets Manager. People write the values, External Secrets reads them; no value passes
through Pulumi.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import layout
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

RECOVERY_DAYS = 30


class Secrets(PlatformComponent):
    """The secrets of a platform: their ARNs, and by the spec's name their name in Secrets Manager."""

    TYPE = "trainfleet:aws:Secrets"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "secrets", opts)
        names = spec.secrets.names if spec.secrets.provider == "cloud" else ()
        secrets = [self._secret(name, keys) for name in names]
        self.arns = [secret.arn for secret in secrets]
        self.names: dict[str, pulumi.Input[str]] = {
            name: secret.name for name, secret in zip(names, secrets, strict=True)
        }
        self.register_outputs({})

    def _secret(self, name: str, keys: Keys) -> aws.secretsmanager.Secret:
        what = f"secret-{name}"
        return aws.secretsmanager.Secret(
            self.name(what),
            name=layout.secret_name(self.spec, name),
            description=f"Trainfleet {self.spec.name}: {name}; written by hand, read by External Secrets",
            kms_key_id=keys.data.arn,
            recovery_window_in_days=RECOVERY_DAYS if self.spec.production else 0,
            tags=self.tags(what),
            opts=self.options(retain=True, delete_before_replace=True),
        )
