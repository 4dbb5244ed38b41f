"""KubeRay: its resource definitions as separate resources, then the operator by Helm without them.

The operator watches only the training namespace and has permissions only there.
"""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi_kubernetes.apiextensions.CustomResource import CustomResource

from trainfleet.infra.kubernetes.charts import kuberay_operator, release
from trainfleet.infra.kubernetes.crds import definitions
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import KUBERAY_NAMESPACE
from trainfleet.infra.kubernetes.values import operators
from trainfleet.infra.spec.schema import PlatformSpec


class KubeRay(pulumi.ComponentResource):
    """Four resource definitions and the operator, which comes after them and goes before them."""

    def __init__(self, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainfleet:kubernetes:KubeRay", f"{spec.name}-kuberay", None, opts)
        if features.kuberay:
            crds = [self._definition(spec, definition) for definition in definitions(spec.ray.operator)]
            chart = kuberay_operator(spec.ray.operator)
            values = operators.kuberay(spec, features.own_priority)
            release(
                f"{spec.name}-kuberay-operator",
                chart,
                KUBERAY_NAMESPACE,
                values,
                parent=self,
                depends_on=crds,
            )
        self.register_outputs({})

    def _definition(self, spec: PlatformSpec, definition: dict[str, Any]) -> pulumi.Resource:
        # The untyped resource of the same type token: the typed class would translate every key of the schema
        # between two spellings, on the way in and out (pulumi#6301). It is taken from its own module, because
        # the package's attribute of that name is the module itself for the moment in which another thread
        # imports it.
        return CustomResource(
            f"{spec.name}-crd-{definition['spec']['names']['plural']}",
            api_version=definition["apiVersion"],
            kind=definition["kind"],
            metadata={
                "name": definition["metadata"]["name"],
                "annotations": definition["metadata"]["annotations"],
            },
            spec=sdk_names(definition["spec"]),
            opts=pulumi.ResourceOptions(
                parent=self,
                # In production a definition that leaves the program stays in the cluster, and with it every
                # run; only the cluster's own end is theirs.
                retain_on_delete=spec.production or None,
            ),
        )


def sdk_names(node: Any) -> Any:
    """The schema with `x_kubernetes_…` for `x-kubernetes-…`: Pulumi's spelling, which the provider writes
    back (pulumi-kubernetes#3348).
    """
    if isinstance(node, dict):
        return {
            key.replace("-", "_") if key.startswith("x-kubernetes-") else key: sdk_names(value)
            for key, value in node.items()
        }
    return [sdk_names(item) for item in node] if isinstance(node, list) else node
