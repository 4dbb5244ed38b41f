"""ExternalSecrets: secrets of the cloud's store as Secrets in the training namespace.

The operator's account can read only these secrets. The value is fetched in the cluster and never passes
through Pulumi; an ExternalSecret waits until its secret has a value.
"""

from __future__ import annotations

from typing import Any

import pulumi

from trainfleet.infra.kubernetes.charts import EXTERNAL_SECRETS, release
from trainfleet.infra.kubernetes.custom import custom
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import SECRET_STORE
from trainfleet.infra.kubernetes.values import operators
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.schema import PlatformSpec

API_VERSION = "external-secrets.io/v1"


@document
class Condition:
    namespaces: tuple[str, ...]


@document
class StoreSpec:
    provider: dict[str, Any]
    conditions: tuple[Condition, ...]


@document
class StoreReference:
    kind: str
    name: str


@document
class Target:
    name: str
    creation_policy: str
    deletion_policy: str


@document
class Remote:
    key: pulumi.Input[str]


@document
class Entry:
    secret_key: str
    remote_ref: Remote


@document
class SecretSpec:
    refresh_interval: str
    secret_store_ref: StoreReference
    target: Target
    data: tuple[Entry, ...]


class ExternalSecrets(pulumi.ComponentResource):
    """The chart, the store, and one ExternalSecret for each of `secrets.names`. Empty without a store."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__(
            "trainfleet:kubernetes:ExternalSecrets", f"{spec.name}-external-secrets-room", None, opts
        )
        self._spec = spec
        if features.secrets:
            identity = platform.identities["secrets"]
            values = operators.external_secrets(identity, monitored=features.monitoring)
            chart = release(
                f"{spec.name}-external-secrets", EXTERNAL_SECRETS, identity.namespace, values, parent=self
            )
            # Other namespaces cannot read through this store.
            only = (Condition((TRAINING_NAMESPACE,)),)
            store = self._resource(
                "ClusterSecretStore", {"name": SECRET_STORE}, StoreSpec(platform.secret_store, only), chart
            )
            for name in spec.secrets.names:
                metadata = {"name": name, "namespace": TRAINING_NAMESPACE}
                self._resource(
                    "ExternalSecret", metadata, secret(name, platform.secrets.get(name, name)), store
                )
        self.register_outputs({})

    def _resource(
        self, kind: str, metadata: dict[str, str], spec: StoreSpec | SecretSpec, after: pulumi.Resource
    ) -> pulumi.Resource:
        name = f"{self._spec.name}-{kind.lower()}-{metadata['name']}"
        return custom(
            name, f"{API_VERSION}:{kind}", metadata, {"spec": spec}, parent=self, depends_on=[after]
        )


def secret(name: str, remote: pulumi.Input[str]) -> SecretSpec:
    """The Secret `name` with the key `value`, refreshed every hour."""
    return SecretSpec(
        refresh_interval="1h",
        secret_store_ref=StoreReference("ClusterSecretStore", SECRET_STORE),
        # NOTE: Retain, so that an unreachable store does not delete the secret of a running training.
        target=Target(name, "Owner", "Retain"),
        data=(Entry("value", Remote(remote)),),
    )
