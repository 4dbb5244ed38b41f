"""Certificates: the authority that signs certificates of Ray's own traffic, and the script by which a pod
gets one.

Ray verifies certificates between all its processes by address, so every pod needs its own: an init container
signs it with the authority's key (docs.ray.io, "TLS authentication", KubeRay). The key is created in the
cluster, because inputs of this program are stored in the state.
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
    RAY_CA_SECRET,
    RAY_TLS_CONFIG,
    RAY_TLS_SCRIPT,
)
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
class Authority:
    secret_name: str


@document
class IssuerSpec:
    self_signed: SelfSigned | None = None
    ca: Authority | None = None


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
    """The authority, created by a Job or by cert-manager, and the pods' script. Empty without ray.tls."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Certificates", f"{spec.name}-certificates", None, opts)
        self._spec = spec
        # A platform without a registry may reach no public one either, but its nodes have the training image.
        self._image = (spec.ray.image if platform.registry == "" else "") or IMAGE
        if features.certificates != "none":
            self._config(RAY_TLS_CONFIG, RAY_TLS_SCRIPT, "certificate.sh")
        if features.certificates == "own-ca":
            self._own()
        if features.certificates == "cert-manager":
            self._cert_manager()
        self.register_outputs({})

    def _config(self, name: str, key: str, script: str) -> k8s.core.v1.ConfigMap:
        text = (files("trainfleet.infra.kubernetes.scripts") / script).read_text(encoding="utf-8")
        metadata = k8s.meta.v1.ObjectMetaArgs(name=name, namespace=TRAINING_NAMESPACE)
        return k8s.core.v1.ConfigMap(
            f"{self._spec.name}-{name}", metadata=metadata, data={key: text}, opts=self._options()
        )

    def _options(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=list(after), delete_before_replace=True)

    def _own(self) -> None:
        """A Job that may only create Secrets in the training namespace."""
        metadata = k8s.meta.v1.ObjectMetaArgs(name=RAY_CA_SECRET, namespace=TRAINING_NAMESPACE)
        script = self._config(f"{RAY_CA_SECRET}-script", "ray_ca.py", "ray_ca.py")
        account = k8s.core.v1.ServiceAccount(
            f"{self._spec.name}-account-ray-ca", metadata=metadata, opts=self._options()
        )
        rules = [k8s.rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["secrets"], verbs=["create"])]
        role = k8s.rbac.v1.Role(
            f"{self._spec.name}-ray-ca", metadata=metadata, rules=rules, opts=self._options()
        )
        binding = k8s.rbac.v1.RoleBinding(
            f"{self._spec.name}-ray-ca-binding",
            metadata=metadata,
            subjects=[
                k8s.rbac.v1.SubjectArgs(
                    kind="ServiceAccount", name=RAY_CA_SECRET, namespace=TRAINING_NAMESPACE
                )
            ],
            role_ref=k8s.rbac.v1.RoleRefArgs(
                api_group="rbac.authorization.k8s.io", kind="Role", name=RAY_CA_SECRET
            ),
            opts=self._options(role),
        )
        k8s.batch.v1.Job(
            f"{self._spec.name}-ray-ca-job",
            # Not awaited: the Job may wait for a free node or for its image.
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=RAY_CA_SECRET, namespace=TRAINING_NAMESPACE, annotations={"pulumi.com/skipAwait": "true"}
            ),
            spec=k8s.batch.v1.JobSpecArgs(backoff_limit=20, template=self._pod()),
            opts=self._options(script, account, binding),
        )

    def _pod(self) -> k8s.core.v1.PodTemplateSpecArgs:
        mounts = [
            k8s.core.v1.VolumeMountArgs(name="script", mount_path="/script", read_only=True),
            k8s.core.v1.VolumeMountArgs(name="tmp", mount_path="/tmp"),
        ]
        container = k8s.core.v1.ContainerArgs(
            name="ray-ca",
            image=self._image,
            command=["python", "/script/ray_ca.py"],
            env=[
                k8s.core.v1.EnvVarArgs(name="SECRET", value=RAY_CA_SECRET),
                k8s.core.v1.EnvVarArgs(name="NAMESPACE", value=TRAINING_NAMESPACE),
            ],
            resources=k8s.core.v1.ResourceRequirementsArgs(
                requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
            ),
            security_context=k8s.core.v1.SecurityContextArgs(
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"]),
            ),
            volume_mounts=mounts,
        )
        memory = k8s.core.v1.EmptyDirVolumeSourceArgs(medium="Memory", size_limit="16Mi")
        script = k8s.core.v1.ConfigMapVolumeSourceArgs(name=f"{RAY_CA_SECRET}-script")
        return k8s.core.v1.PodTemplateSpecArgs(
            spec=k8s.core.v1.PodSpecArgs(
                service_account_name=RAY_CA_SECRET,
                restart_policy="OnFailure",
                security_context=k8s.core.v1.PodSecurityContextArgs(
                    run_as_non_root=True,
                    run_as_user=65534,
                    seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
                ),
                containers=[container],
                # The key stays in memory until it is in the Secret.
                volumes=[
                    k8s.core.v1.VolumeArgs(name="script", config_map=script),
                    k8s.core.v1.VolumeArgs(name="tmp", empty_dir=memory),
                ],
            )
        )

    def _cert_manager(self) -> None:
        """The chart, a self-signed issuer, the authority's certificate, and an issuer that uses it."""
        values = operators.cert_manager(CERTIFICATES_NAMESPACE, retain=self._spec.production)
        chart = release(
            f"{self._spec.name}-cert-manager", CERT_MANAGER, CERTIFICATES_NAMESPACE, values, parent=self
        )
        first = self._resource("Issuer", "ray-self-signed", IssuerSpec(self_signed=SelfSigned()), chart)
        body = CertificateSpec(
            is_ca=True,
            common_name=RAY_CA_SECRET,
            secret_name=RAY_CA_SECRET,
            duration=TEN_YEARS,
            private_key=PrivateKey("ECDSA", 256, "Never"),
            issuer_ref=IssuerReference("cert-manager.io", "Issuer", "ray-self-signed"),
        )
        authority = self._resource("Certificate", RAY_CA_SECRET, body, first)
        self._resource("Issuer", "ray", IssuerSpec(ca=Authority(RAY_CA_SECRET)), authority)

    def _resource(self, kind: str, name: str, spec: Any, after: pulumi.Resource) -> pulumi.Resource:
        metadata = {"name": name, "namespace": TRAINING_NAMESPACE}
        return custom(
            f"{self._spec.name}-{kind.lower()}-{name}",
            f"{API_VERSION}:{kind}",
            metadata,
            {"spec": spec},
            parent=self,
            depends_on=[after],
        )
