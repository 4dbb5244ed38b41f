"""Redis: one pod with a volume and a password, in which Ray clusters keep their control store (GCS fault
tolerance). Nothing else is stored in it.

A restart of this pod restarts the heads of the Ray clusters that use it, and no worker: they wait ten minutes
for their head.
"""

from __future__ import annotations

from importlib.resources import files

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.certificates import IMAGE
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import REDIS, REDIS_PASSWORD_KEY, REDIS_PORT, STORAGE_CLASS
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.schema import PlatformSpec

LABELS = {"app.kubernetes.io/name": REDIS}
REDIS_USER = 999
"""User and group of the official image."""
FOLDER = "/data"
COMMAND = f"""exec redis-server - --port {REDIS_PORT} --dir {FOLDER} --protected-mode no \\
  --appendonly yes --appendfsync everysec --save '' \\
  --maxmemory 768mb --maxmemory-policy noeviction <<END
requirepass $PASSWORD
END"""
"""The password is read from stdin: arguments are visible to every process of the node."""


class Redis(pulumi.ComponentResource):
    """A StatefulSet of one pod, its service, and the Job that creates its password."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Redis", f"{spec.name}-redis", None, opts)
        self._spec = spec
        self._metadata = k8s.meta.v1.ObjectMetaArgs(name=REDIS, namespace=TRAINING_NAMESPACE)
        self._python = (spec.ray.image if platform.registry == "" else "") or IMAGE
        self._class = STORAGE_CLASS if features.storage_class else None
        self._priority = features.own_priority
        self._password()
        self._server()
        self.register_outputs({})

    def _options(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=list(after), delete_before_replace=True)

    def _password(self) -> None:
        """A Job that may only create Secrets in the training namespace."""
        name = f"{self._spec.name}-redis"
        metadata = k8s.meta.v1.ObjectMetaArgs(name=f"{REDIS}-password", namespace=TRAINING_NAMESPACE)
        script = (files("trainfleet.infra.kubernetes.scripts") / "redis_password.py").read_text("utf-8")
        config = k8s.core.v1.ConfigMap(
            f"{name}-script", metadata=metadata, data={"redis_password.py": script}, opts=self._options()
        )
        account = k8s.core.v1.ServiceAccount(f"{name}-account", metadata=metadata, opts=self._options())
        rules = [k8s.rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["secrets"], verbs=["create"])]
        role = k8s.rbac.v1.Role(f"{name}-role", metadata=metadata, rules=rules, opts=self._options())
        subject = k8s.rbac.v1.SubjectArgs(
            kind="ServiceAccount", name=f"{REDIS}-password", namespace=TRAINING_NAMESPACE
        )
        reference = k8s.rbac.v1.RoleRefArgs(
            api_group="rbac.authorization.k8s.io", kind="Role", name=f"{REDIS}-password"
        )
        binding = k8s.rbac.v1.RoleBinding(
            f"{name}-binding",
            metadata=metadata,
            subjects=[subject],
            role_ref=reference,
            opts=self._options(role),
        )
        k8s.batch.v1.Job(
            f"{name}-password-job",
            # Not awaited: the Job may wait for a free node or for its image.
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=f"{REDIS}-password",
                namespace=TRAINING_NAMESPACE,
                annotations={"pulumi.com/skipAwait": "true"},
            ),
            spec=k8s.batch.v1.JobSpecArgs(backoff_limit=20, template=self._password_pod()),
            opts=self._options(config, account, binding),
        )

    def _password_pod(self) -> k8s.core.v1.PodTemplateSpecArgs:
        names = {"SECRET": REDIS, "NAMESPACE": TRAINING_NAMESPACE, "KEY": REDIS_PASSWORD_KEY}
        container = k8s.core.v1.ContainerArgs(
            name="redis-password",
            image=self._python,
            command=["python", "/script/redis_password.py"],
            env=[k8s.core.v1.EnvVarArgs(name=key, value=value) for key, value in names.items()],
            resources=k8s.core.v1.ResourceRequirementsArgs(
                requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
            ),
            security_context=_restricted(),
            volume_mounts=[k8s.core.v1.VolumeMountArgs(name="script", mount_path="/script", read_only=True)],
        )
        script = k8s.core.v1.ConfigMapVolumeSourceArgs(name=f"{REDIS}-password")
        return k8s.core.v1.PodTemplateSpecArgs(
            spec=k8s.core.v1.PodSpecArgs(
                service_account_name=f"{REDIS}-password",
                restart_policy="OnFailure",
                security_context=_user(65534),
                containers=[container],
                volumes=[k8s.core.v1.VolumeArgs(name="script", config_map=script)],
            )
        )

    def _server(self) -> None:
        port = k8s.core.v1.ServicePortArgs(name="redis", port=REDIS_PORT, target_port=REDIS_PORT)
        service = k8s.core.v1.Service(
            f"{self._spec.name}-redis-service",
            # Not awaited: it has no endpoints until a node is free for its pod.
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=REDIS, namespace=TRAINING_NAMESPACE, annotations={"pulumi.com/skipAwait": "true"}
            ),
            spec=k8s.core.v1.ServiceSpecArgs(selector=LABELS, ports=[port]),
            opts=self._options(),
        )
        claim = k8s.core.v1.PersistentVolumeClaimArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(name="data"),
            spec=k8s.core.v1.PersistentVolumeClaimSpecArgs(
                access_modes=["ReadWriteOnce"],
                storage_class_name=self._class,
                resources=k8s.core.v1.VolumeResourceRequirementsArgs(
                    requests={"storage": f"{self._spec.ray.redis.storage_gib}Gi"}
                ),
            ),
        )
        k8s.apps.v1.StatefulSet(
            f"{self._spec.name}-redis-server",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=REDIS, namespace=TRAINING_NAMESPACE, annotations={"pulumi.com/skipAwait": "true"}
            ),
            spec=k8s.apps.v1.StatefulSetSpecArgs(
                service_name=REDIS,
                replicas=1,
                selector=k8s.meta.v1.LabelSelectorArgs(match_labels=LABELS),
                template=self._server_pod(),
                volume_claim_templates=[claim],
            ),
            opts=self._options(service),
        )

    def _server_pod(self) -> k8s.core.v1.PodTemplateSpecArgs:
        password = k8s.core.v1.EnvVarSourceArgs(
            secret_key_ref=k8s.core.v1.SecretKeySelectorArgs(name=REDIS, key=REDIS_PASSWORD_KEY)
        )
        probe = k8s.core.v1.ProbeArgs(
            tcp_socket=k8s.core.v1.TCPSocketActionArgs(port=REDIS_PORT), period_seconds=5
        )
        container = k8s.core.v1.ContainerArgs(
            name=REDIS,
            image=self._spec.ray.redis.image,
            command=["sh", "-euc", COMMAND],
            env=[k8s.core.v1.EnvVarArgs(name="PASSWORD", value_from=password)],
            ports=[k8s.core.v1.ContainerPortArgs(name="redis", container_port=REDIS_PORT)],
            resources=k8s.core.v1.ResourceRequirementsArgs(
                requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1536Mi"}
            ),
            readiness_probe=probe,
            liveness_probe=probe,
            security_context=_restricted(),
            volume_mounts=[k8s.core.v1.VolumeMountArgs(name="data", mount_path=FOLDER)],
        )
        return k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=LABELS),
            spec=k8s.core.v1.PodSpecArgs(
                automount_service_account_token=False,
                priority_class_name=self._priority,
                security_context=_user(REDIS_USER),
                containers=[container],
            ),
        )


def _restricted() -> k8s.core.v1.SecurityContextArgs:
    return k8s.core.v1.SecurityContextArgs(
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"]),
    )


def _user(number: int) -> k8s.core.v1.PodSecurityContextArgs:
    return k8s.core.v1.PodSecurityContextArgs(
        run_as_non_root=True,
        run_as_user=number,
        run_as_group=number,
        fs_group=number,
        seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
    )
