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
    """Create a resource of `kind` (group/version:Kind). `body` has all keys except `metadata`.

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
