"""Certificates: the CA of Ray's own traffic, the signer that has its key, and the program by which a pod gets
a certificate.

Ray verifies certificates between all its processes by address, so every pod needs its own (docs.ray.io, "TLS
authentication"). Ray's own way is to mount the CA's key in every pod. Here a pod asks the signer, and the key
stays in a namespace in which launchers have no rights. It is created in the cluster, because inputs of this
program are stored in the state.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.charts import CERT_MANAGER, release
from trainfleet.infra.kubernetes.custom import custom
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import (
    CERTIFICATES_NAMESPACE,
    RAY_CA,
    RAY_TLS_CONFIG,
    RAY_TLS_SCRIPT,
    SIGNER_NAMESPACE,
)
from trainfleet.infra.kubernetes.ray_signer import RaySigner
from trainfleet.infra.kubernetes.values import operators
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.schema import PlatformSpec

IMAGE = "docker.io/library/python:3.13.7-slim-trixie"
"""Python with the openssl command, which ca-certificates provides. The training image has both."""
API_VERSION = "cert-manager.io/v1"
TEN_YEARS = "87600h"


@document
class SelfSigned:
    """An issuer that needs no settings."""


@document
class IssuerSpec:
    self_signed: SelfSigned


@document
class PrivateKey:
    algorithm: str
    size: int
    rotation_policy: str


@document
class IssuerReference:
    group: str
    kind: str
    name: str


@document
class CertificateSpec:
    KEYS: ClassVar = {"is_ca": "isCA"}
    is_ca: bool
    common_name: str
    secret_name: str
    duration: str
    private_key: PrivateKey
    issuer_ref: IssuerReference


class Certificates(pulumi.ComponentResource):
    """The CA, its signer, and the pods' program. Empty without ray.tls."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Certificates", f"{spec.name}-certificates", None, opts)
        self._spec = spec
        if features.certificates != "none":
            # A platform without a registry may reach no public one either; its nodes have the training image.
            image = (spec.ray.image if platform.registry == "" else "") or IMAGE
            self._program()
            if features.certificates == "cert-manager":
                self._cert_manager()
            RaySigner(self, platform, spec, features, image)
        self.register_outputs({})

    def _program(self) -> None:
        text = (files("trainfleet.infra.kubernetes.scripts") / RAY_TLS_SCRIPT).read_text(encoding="utf-8")
        k8s.core.v1.ConfigMap(
            f"{self._spec.name}-{RAY_TLS_CONFIG}",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=RAY_TLS_CONFIG, namespace=TRAINING_NAMESPACE),
            data={RAY_TLS_SCRIPT: text},
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )

    def _cert_manager(self) -> None:
        """The chart, a self-signed issuer, and the CA's certificate, whose Secret the signer reads."""
        values = operators.cert_manager(CERTIFICATES_NAMESPACE, retain=self._spec.production)
        chart = release(
            f"{self._spec.name}-cert-manager", CERT_MANAGER, CERTIFICATES_NAMESPACE, values, parent=self
        )
        first = self._resource("Issuer", "ray-self-signed", IssuerSpec(SelfSigned()), chart)
        body = CertificateSpec(
            is_ca=True,
            common_name=RAY_CA,
            secret_name=RAY_CA,
            duration=TEN_YEARS,
            private_key=PrivateKey("ECDSA", 256, "Never"),
            issuer_ref=IssuerReference("cert-manager.io", "Issuer", "ray-self-signed"),
        )
        self._resource("Certificate", RAY_CA, body, first)

    def _resource(self, kind: str, name: str, spec: Any, after: pulumi.Resource) -> pulumi.Resource:
        metadata = {"name": name, "namespace": SIGNER_NAMESPACE}
        return custom(
            f"{self._spec.name}-{kind.lower()}-{name}",
            f"{API_VERSION}:{kind}",
            metadata,
            {"spec": spec},
            parent=self,
            depends_on=[after],
        )
