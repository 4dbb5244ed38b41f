"""The cluster autoscaler, where the cloud does not bring its own: on AWS it grows and shrinks the pools' scaling groups.

Easy to get wrong: its minor version must be the cluster's, and a pool at zero nodes is only grown when its labels and
taints can be read from the pool itself (node group or scaling group tags), which the cloud's gpu_pools.py takes care of.
"""

from __future__ import annotations

from typing import Any

import pulumi

from infra.kubernetes.charts import CLUSTER_AUTOSCALER, release
from infra.platform import Platform, ServiceIdentity
from infra.spec import Cloud, PlatformSpec

IMAGES = {"1.33": "v1.33.0", "1.34": "v1.34.1", "1.35": "v1.35.0"}
"""The autoscaler's release per Kubernetes version; for another version the chart's own image is taken."""


class Autoscaler(pulumi.ComponentResource):
    """The chart under the account that the cloud bound to a role for it; nothing where the cloud scales pools itself."""

    def __init__(self, platform: Platform, spec: PlatformSpec, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainfleet:kubernetes:Autoscaler", f"{spec.name}-autoscaler", None, opts)
        identity = platform.identities.get("autoscaler")
        if platform.cloud is Cloud.AWS and platform.autoscaler == "generic" and identity is not None:
            values = autoscaler_values(platform, spec, identity)
            release(f"{spec.name}-cluster-autoscaler", CLUSTER_AUTOSCALER, identity.namespace, values, parent=self)
        self.register_outputs({})


def autoscaler_values(platform: Platform, spec: PlatformSpec, identity: ServiceIdentity) -> dict[str, Any]:
    image = IMAGES.get(spec.kubernetes.version)
    return {
        "cloudProvider": "aws",
        "awsRegion": spec.region,
        "autoDiscovery": {"clusterName": platform.cluster_name},
        "rbac": {"serviceAccount": {"create": False, "name": identity.service_account}},
        "fullnameOverride": "cluster-autoscaler",
        # The autoscaler must run when cluster DNS does not, for that may be why nodes are needed.
        "dnsPolicy": "Default",
        "extraArgs": {
            "expander": "least-waste",
            "balance-similar-node-groups": True,
            # System pods must not hold a GPU node; training pods with local scratch must.
            "skip-nodes-with-system-pods": False,
            "skip-nodes-with-local-storage": True,
            "scale-down-unneeded-time": "10m",
            # An eight-GPU machine takes far longer than the default quarter of an hour to come up in a busy zone.
            "max-node-provision-time": "30m",
        },
        "resources": {"requests": {"cpu": "100m", "memory": "600Mi"}, "limits": {"memory": "600Mi"}},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containerSecurityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        **({"image": {"tag": image}} if image else {}),
    }
