"""Custom resources of charts: kinds whose definitions a chart provides, so that the SDK has no class for them.

Registered by the type that the provider gives them, with whatever stands beside `metadata` (Pulumi's own
class knows `spec`
only, and a WorkloadPriorityClass has none). Easy to get wrong: a preview needs no definition, an apply does,
so each one
depends on the chart that provides it (pulumi-kubernetes#3247).
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
    """A resource of `kind`, written group/version:Kind, with what stands beside its metadata in `body`.

    Raises:
        TrainfleetError: a kind or a key that known.json does not have.
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
