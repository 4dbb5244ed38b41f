"""RaySigner: the pods that have the CA's key and sign one certificate for one pod, in their own namespace."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import (
    RAY_CA,
    RAY_SIGNER,
    RAY_SIGNER_AUDIENCE,
    RAY_SIGNER_HOST,
    RAY_SIGNER_PORT,
    SIGNER_NAMESPACE,
)
from trainfleet.infra.kubernetes.scripts.ray_signer.server import READY_PATH
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.schema import PlatformSpec

LABELS = {"app.kubernetes.io/name": RAY_SIGNER}
FOLDER = "/program"
USER = 65534
RBAC = "rbac.authorization.k8s.io"
RAY_KINDS = ["rayclusters", "rayjobs", "rayservices"]

Rule = tuple[str, list[str], list[str], list[str]]
"""API group, resources, verbs, and the only objects by name (empty: all)."""


def program() -> dict[str, str]:
    """The modules of the signer, by their file names."""
    folder = files("trainfleet.infra.kubernetes.scripts") / RAY_SIGNER.replace("-", "_")
    return {
        each.name: each.read_text(encoding="utf-8")
        for each in sorted(folder.iterdir(), key=lambda file: file.name)
        if each.name.endswith(".py")
    }


def key(module: str) -> str:
    """The key of a module in the ConfigMap.

    Names that start with `__` are Pulumi's own: its SDKs leave such keys out of what they read back.
    """
    return module.lstrip("_")


def own_rules(create: bool) -> list[Rule]:
    """What the signer may do in its own namespace. A rule cannot limit creation by name."""
    return [
        ("", ["secrets"], ["get"], [RAY_CA]),
        *([("", ["secrets"], ["create"], [])] if create else ()),
    ]


def training_rules(kuberay: bool) -> list[Rule]:
    """What the signer may do in the training namespace."""
    return [
        ("", ["pods"], ["get", "list"], []),
        ("", ["configmaps"], ["create"], []),
        ("", ["configmaps"], ["get", "update"], [RAY_CA]),
        # The key that earlier releases kept here. It is deleted once no object mounts it.
        ("", ["secrets"], ["get", "delete"], [RAY_CA]),
        *([("ray.io", RAY_KINDS, ["list"], [])] if kuberay else ()),
    ]


class RaySigner:
    """Deployment, headless service, account and rights. Two pods, and one on an existing cluster."""

    def __init__(
        self,
        parent: pulumi.Resource,
        platform: Platform,
        spec: PlatformSpec,
        features: LayerFeatures,
        image: str,
    ) -> None:
        self._parent, self._name = parent, f"{spec.name}-{RAY_SIGNER}"
        self._image, self._features = image, features
        # An existing cluster may have one node, which a budget would never let drain.
        self._replicas = 1 if platform.cluster is None else 2
        account = k8s.core.v1.ServiceAccount(
            f"{self._name}-account", metadata=self._metadata(), opts=self._options()
        )
        self._rights()
        self._server(account)

    def _metadata(
        self, namespace: str = SIGNER_NAMESPACE, awaited: bool = True
    ) -> k8s.meta.v1.ObjectMetaArgs:
        # A pod may wait for a free node or for its image, and the service for its pod.
        annotations = None if awaited else {"pulumi.com/skipAwait": "true"}
        return k8s.meta.v1.ObjectMetaArgs(name=RAY_SIGNER, namespace=namespace, annotations=annotations)

    def _options(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self._parent, depends_on=list(after), delete_before_replace=True)

    def _rights(self) -> None:
        """Rights in two namespaces, and to verify tokens, which belong to no namespace."""
        subject = k8s.rbac.v1.SubjectArgs(kind="ServiceAccount", name=RAY_SIGNER, namespace=SIGNER_NAMESPACE)
        places = {
            SIGNER_NAMESPACE: own_rules(self._features.certificates == "own-ca"),
            TRAINING_NAMESPACE: training_rules(self._features.kuberay),
        }
        for namespace, rules in places.items():
            role = k8s.rbac.v1.Role(
                f"{self._name}-{namespace}",
                metadata=self._metadata(namespace),
                rules=_rules(rules),
                opts=self._options(),
            )
            k8s.rbac.v1.RoleBinding(
                f"{self._name}-{namespace}-binding",
                metadata=self._metadata(namespace),
                subjects=[subject],
                role_ref=k8s.rbac.v1.RoleRefArgs(api_group=RBAC, kind="Role", name=RAY_SIGNER),
                opts=self._options(role),
            )
        everywhere = k8s.meta.v1.ObjectMetaArgs(name=f"trainfleet-{RAY_SIGNER}")
        reviewer = k8s.rbac.v1.ClusterRole(
            f"{self._name}-reviewer",
            metadata=everywhere,
            rules=_rules([("authentication.k8s.io", ["tokenreviews"], ["create"], [])]),
            opts=self._options(),
        )
        k8s.rbac.v1.ClusterRoleBinding(
            f"{self._name}-reviewer-binding",
            metadata=everywhere,
            subjects=[subject],
            role_ref=k8s.rbac.v1.RoleRefArgs(
                api_group=RBAC, kind="ClusterRole", name=f"trainfleet-{RAY_SIGNER}"
            ),
            opts=self._options(reviewer),
        )

    def _server(self, account: pulumi.Resource) -> None:
        modules = program()
        config = k8s.core.v1.ConfigMap(
            f"{self._name}-program",
            metadata=self._metadata(),
            data={key(name): text for name, text in modules.items()},
            opts=self._options(),
        )
        port = k8s.core.v1.ServicePortArgs(name="https", port=RAY_SIGNER_PORT, target_port=RAY_SIGNER_PORT)
        k8s.core.v1.Service(
            f"{self._name}-service",
            metadata=self._metadata(awaited=False),
            # NOTE: headless. The signer checks the address that a request comes from, and a service with an
            # address of its own may be rewritten to that of a node (kube-proxy's masquerading).
            spec=k8s.core.v1.ServiceSpecArgs(cluster_ip="None", selector=LABELS, ports=[port]),
            opts=self._options(),
        )
        digest = hashlib.sha256(repr(modules).encode()).hexdigest()
        k8s.apps.v1.Deployment(
            f"{self._name}-deployment",
            metadata=self._metadata(awaited=False),
            spec=k8s.apps.v1.DeploymentSpecArgs(
                replicas=self._replicas,
                selector=k8s.meta.v1.LabelSelectorArgs(match_labels=LABELS),
                template=self._pod(modules, digest),
            ),
            opts=self._options(config, account),
        )
        if self._replicas > 1:
            k8s.policy.v1.PodDisruptionBudget(
                f"{self._name}-budget",
                metadata=self._metadata(),
                spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(
                    min_available=1, selector=k8s.meta.v1.LabelSelectorArgs(match_labels=LABELS)
                ),
                opts=self._options(),
            )

    def _pod(self, modules: dict[str, str], digest: str) -> k8s.core.v1.PodTemplateSpecArgs:
        spread = k8s.core.v1.TopologySpreadConstraintArgs(
            max_skew=1,
            topology_key="kubernetes.io/hostname",
            when_unsatisfiable="ScheduleAnyway",
            label_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=LABELS),
        )
        paths = [k8s.core.v1.KeyToPathArgs(key=key(name), path=name) for name in modules]
        source = k8s.core.v1.ConfigMapVolumeSourceArgs(name=RAY_SIGNER, items=paths)
        # The key stays in memory.
        memory = k8s.core.v1.EmptyDirVolumeSourceArgs(medium="Memory", size_limit="16Mi")
        return k8s.core.v1.PodTemplateSpecArgs(
            # A changed program starts new pods.
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=LABELS, annotations={"trainfleet.io/program": digest}),
            spec=k8s.core.v1.PodSpecArgs(
                service_account_name=RAY_SIGNER,
                priority_class_name=self._features.own_priority,
                topology_spread_constraints=[spread],
                security_context=k8s.core.v1.PodSecurityContextArgs(
                    run_as_non_root=True,
                    run_as_user=USER,
                    run_as_group=USER,
                    fs_group=USER,
                    seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
                ),
                containers=[self._container()],
                volumes=[
                    k8s.core.v1.VolumeArgs(name="program", config_map=source),
                    k8s.core.v1.VolumeArgs(name="tmp", empty_dir=memory),
                ],
            ),
        )

    def _container(self) -> k8s.core.v1.ContainerArgs:
        settings = {
            "NAMESPACE": SIGNER_NAMESPACE,
            "TRAINING_NAMESPACE": TRAINING_NAMESPACE,
            "CA_NAME": RAY_CA,
            "SERVICE": RAY_SIGNER_HOST,
            "AUDIENCE": RAY_SIGNER_AUDIENCE,
            "PORT": str(RAY_SIGNER_PORT),
            "CREATE_CA": "yes" if self._features.certificates == "own-ca" else "no",
            "PYTHONPATH": FOLDER,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        package = RAY_SIGNER.replace("-", "_")
        ready = k8s.core.v1.HTTPGetActionArgs(path=READY_PATH, port=RAY_SIGNER_PORT, scheme="HTTPS")
        accepts = k8s.core.v1.TCPSocketActionArgs(port=RAY_SIGNER_PORT)
        return k8s.core.v1.ContainerArgs(
            name=RAY_SIGNER,
            image=self._image,
            command=["python", "-m", package],
            env=[k8s.core.v1.EnvVarArgs(name=key, value=value) for key, value in settings.items()],
            ports=[k8s.core.v1.ContainerPortArgs(name="https", container_port=RAY_SIGNER_PORT)],
            resources=k8s.core.v1.ResourceRequirementsArgs(
                requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
            ),
            # It listens once it has the CA, which cert-manager may write minutes later.
            startup_probe=k8s.core.v1.ProbeArgs(tcp_socket=accepts, period_seconds=2, failure_threshold=300),
            readiness_probe=k8s.core.v1.ProbeArgs(http_get=ready, period_seconds=5, timeout_seconds=5),
            # By TCP: a busy signer accepts, and is not restarted.
            liveness_probe=k8s.core.v1.ProbeArgs(tcp_socket=accepts, period_seconds=10, failure_threshold=6),
            security_context=k8s.core.v1.SecurityContextArgs(
                allow_privilege_escalation=False,
                read_only_root_filesystem=True,
                capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"]),
            ),
            volume_mounts=[
                k8s.core.v1.VolumeMountArgs(name="program", mount_path=f"{FOLDER}/{package}", read_only=True),
                k8s.core.v1.VolumeMountArgs(name="tmp", mount_path="/tmp"),
            ],
        )


def _rules(rules: list[Rule]) -> list[k8s.rbac.v1.PolicyRuleArgs]:
    return [
        k8s.rbac.v1.PolicyRuleArgs(
            api_groups=[group], resources=resources, verbs=verbs, resource_names=named or None
        )
        for group, resources, verbs, named in rules
    ]
