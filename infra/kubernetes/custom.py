"""Custom resources of kinds that a chart defines, for which the SDK has no class.

Pulumi's own CustomResource supports only `spec`, and a WorkloadPriorityClass has none. An apply needs the
definition, so each resource depends on the chart that provides it (pulumi-kubernetes#3247).
"""

from __future__ import annotations

from typing import Any

import pulumi

from trainfleet.infra.kubernetes.chart_keys import ANYTHING, known, refuse_unknown
from trainfleet.infra.kubernetes.manifest_model import plain


def custom(
    name: str,
    kind: str,
    metadata: dict[str, str],
    body: Any,
    *,
    parent: pulumi.Resource,
    depends_on: list[pulumi.Resource],
) -> pulumi.CustomResource:
    """Create a custom resource.

    Args:
        name: logical name, which is part of the URN.
        kind: `group/version:Kind`.
        metadata: name, and namespace unless the kind is cluster-wide.
        body: a model with all keys except `metadata`.
        parent: the component that owns the resource.
        depends_on: the release that brings the definition, and what the resource refers to.

    Raises:
        TrainfleetError: a kind or a key that chart_keys.json does not have.
    """
    api_version, _, short = kind.partition(":")
    kinds, document = known()["kinds"], plain(body)
    refuse_unknown("a custom resource", dict.fromkeys(kinds, ANYTHING), {kind: document})
    refuse_unknown(f"{name}, of kind {short},", kinds[kind], document)
    return pulumi.CustomResource(
        f"kubernetes:{kind}",
        name,
        {"apiVersion": api_version, "kind": short, "metadata": metadata, **document},
        pulumi.ResourceOptions(parent=parent, depends_on=depends_on, delete_before_replace=True),
    )
